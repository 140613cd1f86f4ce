-- What people decide, kept for good; and the indexes of the pages on which they do.

CREATE TABLE reviews (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    at timestamptz NOT NULL DEFAULT now(),
    actor text NOT NULL CHECK (length(actor) BETWEEN 1 AND 500),
    action text NOT NULL CHECK (action IN ('replay', 'resolve', 'discard', 'note')),
    mode text CHECK (mode IN ('resume', 'reconcile_first', 'new_generation')),
    reason text NOT NULL CHECK (length(reason) BETWEEN 1 AND 2000),
    dead_letter_id uuid,
    operation_id uuid,
    step text,
    generation integer,
    before json NOT NULL,
    after json NOT NULL,
    CHECK ((action = 'replay') = (mode IS NOT NULL)),
    CHECK (operation_id IS NOT NULL OR dead_letter_id IS NOT NULL)
);
COMMENT ON TABLE reviews IS 'The audit of review actions: one row each, written in the transaction that acts, never changed.';
COMMENT ON COLUMN reviews.id IS 'UUIDv7 of the action.';
COMMENT ON COLUMN reviews.at IS 'When.';
COMMENT ON COLUMN reviews.actor IS 'Who: the verified e-mail, or the local user.';
COMMENT ON COLUMN reviews.action IS 'replay, resolve, discard or note.';
COMMENT ON COLUMN reviews.mode IS 'How it was replayed.';
COMMENT ON COLUMN reviews.reason IS 'Why, or the note itself; with resolve the evidence.';
COMMENT ON COLUMN reviews.dead_letter_id IS 'The review row that was open, if there was one.';
COMMENT ON COLUMN reviews.operation_id IS 'The operation.';
COMMENT ON COLUMN reviews.step IS 'The step.';
COMMENT ON COLUMN reviews.generation IS 'The step''s generation before.';
COMMENT ON COLUMN reviews.before IS 'State, generation and effects before.';
COMMENT ON COLUMN reviews.after IS 'The same afterwards.';
CREATE INDEX reviews_by_operation ON reviews (operation_id, id);
CREATE INDEX reviews_by_dead_letter ON reviews (dead_letter_id) WHERE dead_letter_id IS NOT NULL;

CREATE INDEX dead_letters_by_state ON dead_letters (state, id);
CREATE INDEX operations_by_key ON operations (key, id);
CREATE INDEX operations_ended_badly ON operations (state, id) WHERE state IN ('failed', 'cancelled', 'needs_review');
CREATE INDEX attempts_by_end ON attempts USING brin (ended_at) WITH (pages_per_range = 16, autosummarize = on);
