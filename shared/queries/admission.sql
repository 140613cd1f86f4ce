-- Which accepted operations may start. An operation waits while admitted_at is null and its state is requested.

-- name: may_admit
-- Whether something of the tenant may start: it is due, is not behind another of its key, and the tenant has room.
WITH held AS (
    SELECT o.ordering_key
    FROM operations AS o
    WHERE o.tenant = :tenant AND o.ordering_key IS NOT NULL AND o.state IN ('requested', 'running', 'needs_review')
        AND (o.admitted_at IS NOT NULL OR o.state <> 'requested')
        AND NOT (o.state = 'needs_review' AND o.type = ANY(CAST(:going_on AS text[])))
)
SELECT (
        EXISTS (
            SELECT FROM operations AS o
            WHERE o.tenant = :tenant AND o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NULL
                AND o.starts_at <= now()
        ) OR EXISTS (
            SELECT FROM operations AS o
            WHERE o.tenant = :tenant AND o.admitted_at IS NULL AND o.state = 'requested'
                AND o.ordering_key IS NOT NULL AND o.starts_at <= now()
                AND o.ordering_key NOT IN (SELECT held.ordering_key FROM held)
        )
    ) AND (CAST(:in_flight AS int) IS NULL OR places_left(:tenant, :in_flight) > 0) AS may;

-- name: lock_admission
-- Makes this transaction the one that admits for the tenant, if none does: whoever does looks again after its end.
SELECT pg_try_advisory_xact_lock(hashtextextended('admission of ' || :tenant, 0)) AS locked;

-- name: lock_free_keys
-- Locks the keys whose next operation may start, those that wait longest first. It waits for whoever is giving a position
-- or replaying this moment, and skips nobody: what they leave to the one who admits must find it willing.
WITH held AS (
    SELECT o.ordering_key
    FROM operations AS o
    WHERE o.tenant = :tenant AND o.ordering_key IS NOT NULL AND o.state IN ('requested', 'running', 'needs_review')
        AND (o.admitted_at IS NOT NULL OR o.state <> 'requested')
        AND NOT (o.state = 'needs_review' AND o.type = ANY(CAST(:going_on AS text[])))
)
SELECT k.ordering_key
FROM (
    SELECT o.ordering_key, min(o.starts_at) AS since
    FROM operations AS o
    WHERE o.tenant = :tenant AND o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NOT NULL
        AND o.starts_at <= now()
        AND o.ordering_key NOT IN (SELECT held.ordering_key FROM held)
    GROUP BY o.ordering_key
    ORDER BY since, o.ordering_key
    LIMIT CAST(:batch AS int)
) AS free
INNER JOIN ordering_keys AS k ON k.tenant = :tenant AND k.ordering_key = free.ordering_key
ORDER BY free.since, free.ordering_key
FOR NO KEY UPDATE OF k;

-- name: admit_operations
-- Admits what may start, oldest first, as far as the tenant has room: of each locked key the first that is due, unless
-- the key is held. Steps are locked before operations, and in the order of a cancel. Its snapshot is taken after the
-- keys were locked, so that it sees what their last holders did.
WITH room AS (
    SELECT least(CAST(:batch AS int), places_left(:tenant, :in_flight)) AS places  -- null, without a limit, is passed over
), heads AS (
    SELECT head.id, head.starts_at
    FROM unnest(CAST(:ordering_keys AS text[])) AS k (ordering_key)
    CROSS JOIN LATERAL (
        SELECT o.id, o.starts_at
        FROM operations AS o
        WHERE o.tenant = :tenant AND o.ordering_key = k.ordering_key AND o.admitted_at IS NULL
            AND o.state = 'requested' AND o.starts_at <= now()
        ORDER BY o.position
        LIMIT 1
    ) AS head
    WHERE NOT EXISTS (
        SELECT FROM operations AS holder
        WHERE holder.tenant = :tenant AND holder.ordering_key = k.ordering_key
            AND holder.state IN ('requested', 'running', 'needs_review')
            AND (holder.admitted_at IS NOT NULL OR holder.state <> 'requested')
            AND NOT (holder.state = 'needs_review' AND holder.type = ANY(CAST(:going_on AS text[])))
    )
), others AS (
    SELECT o.id, o.starts_at
    FROM operations AS o
    WHERE o.tenant = :tenant AND o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NULL
        AND o.starts_at <= now()
    ORDER BY o.starts_at, o.id
    LIMIT CAST(:batch AS int)
), chosen AS (
    SELECT candidates.id
    FROM (SELECT id, starts_at FROM heads UNION ALL SELECT id, starts_at FROM others) AS candidates
    ORDER BY candidates.starts_at, candidates.id
    LIMIT (SELECT places FROM room)
), locked AS (
    SELECT s.operation_id, s.step
    FROM chosen
    INNER JOIN steps AS s ON s.operation_id = chosen.id
    WHERE s.state = 'waiting' AND s.needs_left = 0
    ORDER BY s.operation_id, s.step
    FOR NO KEY UPDATE OF s
), queued AS (
    UPDATE steps AS s SET state = 'queued', dispatch = s.dispatch + 1, available_at = now()
    FROM locked
    WHERE s.operation_id = locked.operation_id AND s.step = locked.step AND s.state = 'waiting' AND s.needs_left = 0
    RETURNING s.operation_id, s.step, s.dispatch
), admitted AS (
    UPDATE operations AS o SET admitted_at = coalesce(o.admitted_at, now())
    WHERE o.id IN (SELECT queued.operation_id FROM queued)
    RETURNING o.id, o.type, o.traceparent
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT queued.operation_id, queued.step, admitted.type, queued.dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), admitted.traceparent
    FROM queued
    INNER JOIN admitted ON admitted.id = queued.operation_id
)
SELECT queued.operation_id, admitted.type, queued.step, queued.dispatch, admitted.traceparent
FROM queued
INNER JOIN admitted ON admitted.id = queued.operation_id;

-- name: list_waiting_tenants
-- Every tenant of which something is due and waits: jumps from tenant to tenant in the two indexes.
WITH RECURSIVE free AS (
    (
        SELECT o.tenant FROM operations AS o
        WHERE o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NULL
        ORDER BY o.tenant LIMIT 1
    )
    UNION ALL
    SELECT (
            SELECT o.tenant FROM operations AS o
            WHERE o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NULL AND o.tenant > free.tenant
            ORDER BY o.tenant LIMIT 1
        )
    FROM free
    WHERE free.tenant IS NOT NULL
), in_order AS (
    (
        SELECT o.tenant FROM operations AS o
        WHERE o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NOT NULL
        ORDER BY o.tenant LIMIT 1
    )
    UNION ALL
    SELECT (
            SELECT o.tenant FROM operations AS o
            WHERE o.admitted_at IS NULL AND o.state = 'requested' AND o.ordering_key IS NOT NULL
                AND o.tenant > in_order.tenant
            ORDER BY o.tenant LIMIT 1
        )
    FROM in_order
    WHERE in_order.tenant IS NOT NULL
)
SELECT tenant FROM free WHERE tenant IS NOT NULL
UNION
SELECT tenant FROM in_order WHERE tenant IS NOT NULL;
