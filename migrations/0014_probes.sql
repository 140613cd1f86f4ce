-- A probe of a provider's circuit is a hand-over that only one step may take up: it is no sign of a dispatch that nobody
-- can deliver, and does not count towards that limit.

ALTER TABLE outbox ADD COLUMN probes integer NOT NULL DEFAULT 0 CHECK (probes >= 0);
COMMENT ON COLUMN outbox.probes IS 'How many of the hand-overs in published only tried a provider whose circuit is open.';
GRANT UPDATE (probes) ON outbox TO echoproof_relay;
