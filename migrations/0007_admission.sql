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

-- A function, so that a statement which accepts operations without a key has nothing to do with the table.
CREATE FUNCTION next_position(of_tenant text, of_key text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    given bigint;
BEGIN
    INSERT INTO ordering_keys AS k (tenant, ordering_key, tail)
    VALUES (of_tenant, of_key, nextval('operation_positions'))
    ON CONFLICT (tenant, ordering_key) DO UPDATE SET tail = nextval('operation_positions')
    RETURNING k.tail INTO given;
    RETURN given;
END $$;
COMMENT ON FUNCTION next_position IS 'Locks an ordering key to the end of the transaction and gives its next position: order of position is order of commit.';

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

-- Functions, because a statement with a limit that may be null would be planned anew each time: the plan without a
-- limit looks so much cheaper that no general one is ever kept.
CREATE FUNCTION places_left(of_tenant text, in_flight integer) RETURNS integer
LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN in_flight - (
        SELECT count(*) FROM (
            SELECT FROM operations AS o
            WHERE o.tenant = of_tenant AND o.admitted_at IS NOT NULL AND o.state IN ('requested', 'running')
                AND o.starts_at <= now()
            LIMIT in_flight
        ) AS flying
    );
END $$;
COMMENT ON FUNCTION places_left IS 'How many more operations a tenant may have in flight, zero when it has as many as the limit or more; counts no further than the limit.';

CREATE FUNCTION may_start_at_once(of_tenant text, in_flight integer) RETURNS boolean
LANGUAGE plpgsql STABLE PARALLEL SAFE SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN NOT EXISTS (
        SELECT FROM operations AS o
        WHERE o.tenant = of_tenant AND o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NULL
            AND o.starts_at <= now()
    ) AND places_left(of_tenant, in_flight) > 0;
END $$;
COMMENT ON FUNCTION may_start_at_once IS 'Whether an operation without an ordering key may start as it is accepted: its tenant has room, and nobody waits for it.';

ALTER TABLE identities ADD COLUMN pruned_at timestamptz;
COMMENT ON COLUMN identities.pruned_at IS 'When the record of its operation was pruned; the identity stays for its own, longer time.';
