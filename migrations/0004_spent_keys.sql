-- A key whose saved answer is an error: only a lookup, or a fresh key approved by review, can tell or do more.

ALTER TABLE effects ADD COLUMN key_spent boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN effects.key_spent IS 'The provider answers this key the same way for good (a saved 500, other parameters), so it is not sent again.';
