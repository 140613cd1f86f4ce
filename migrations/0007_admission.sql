-- Which accepted operations may start: one after another within an ordering key, and of each tenant so many at a time.

-- Counts positions for every key together: a key's row may be pruned without a position ever coming again.
CREATE SEQUENCE operation_positions;

CREATE TABLE ordering_keys (
    tenant text NOT NULL,
    ordering_key text NOT NULL,
    tail bigint NOT NULL,
    PRIMARY KEY (tenant, ordering_key)
) WITH (fillfactor = 50);
COMMENT ON TABLE ordering_keys IS 'One row an ordering key; its lock is the key''s lock: it gives positions, and nothing of the key starts without it.';
COMMENT ON COLUMN ordering_keys.tenant IS 'The tenant whose key it is.';
COMMENT ON COLUMN ordering_keys.ordering_key IS 'The key as the caller sent it.';
COMMENT ON COLUMN ordering_keys.tail IS 'Position of the operation that was accepted last.';

-- A release that does not know admission writes neither column: its operations are admitted when they are accepted.
ALTER TABLE operations
    ADD COLUMN admitted_at timestamptz DEFAULT now(),
    ADD COLUMN starts_at timestamptz NOT NULL GENERATED ALWAYS AS (greatest(accepted_at, not_before)) STORED,
    ADD COLUMN position bigint;
COMMENT ON COLUMN operations.admitted_at IS 'Since when its first steps may start (their outbox rows exist); null while it waits for its key or its tenant''s room.';
COMMENT ON COLUMN operations.starts_at IS 'When it is due: at its acceptance, or at not_before if that is later.';
COMMENT ON COLUMN operations.position IS 'Order of acceptance within its ordering key; null without one. Given under the key''s row lock.';

-- What a tenant has in flight: counted, with a limit, at each acceptance; a counter row would be hot.
CREATE INDEX operations_in_flight ON operations (tenant, starts_at)
    WHERE admitted_at IS NOT NULL AND state IN ('requested', 'running');

-- What waits, without a key and with one. Empty unless something waits: they cost the others nothing.
CREATE INDEX operations_waiting ON operations (tenant, starts_at, id)
    WHERE admitted_at IS NULL AND state = 'requested' AND ordering_key IS NULL;
CREATE INDEX operations_waiting_in_order ON operations (tenant, starts_at, id)
    WHERE admitted_at IS NULL AND state = 'requested' AND ordering_key IS NOT NULL;
CREATE INDEX operations_next_in_order ON operations (tenant, ordering_key, position)
    WHERE admitted_at IS NULL AND state = 'requested' AND ordering_key IS NOT NULL;

-- What holds a key: everything of it that has started and is not finished.
CREATE INDEX operations_holding_key ON operations (tenant, ordering_key)
    WHERE ordering_key IS NOT NULL AND state IN ('requested', 'running', 'needs_review')
        AND (admitted_at IS NOT NULL OR state <> 'requested');

CREATE INDEX operations_by_deadline ON operations (deadline)
    WHERE deadline IS NOT NULL AND state IN ('requested', 'running');

ALTER TABLE identities ADD COLUMN pruned_at timestamptz;
COMMENT ON COLUMN identities.pruned_at IS 'When the record of its operation was pruned; the identity stays for its own, longer time.';
