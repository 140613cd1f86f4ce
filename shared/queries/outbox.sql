-- The outbox: leased to a publisher for a while, never removed here; a row dies in the claim of its dispatch.

-- name: lease_due_rows
-- Leases due rows in due order to this relay, but for lanes that are away, what is paused or held, and what only waits
-- in a backlog: newer than the newest claimed one while claims go on. Their next turn is a minute after they are due,
-- doubling to an hour. One aggregated cell: a thousand rows one by one cost the driver as much as the lease.
WITH holding AS MATERIALIZED (
    SELECT held_lanes(CAST(:lanes AS text[]), CAST(:providers AS text[])) AS lanes, held_tenants() AS tenants
), leased AS (
    UPDATE outbox AS x SET
        published = x.published + 1,
        publish_after = greatest(now(), x.available_at)
            + least(interval '1 hour', interval '1 minute' * power(2, least(x.published - x.probes, 6)))
    FROM (
        SELECT o.operation_id, o.step
        FROM outbox AS o
        CROSS JOIN holding
        LEFT JOIN progress AS p ON p.type = o.type AND p.step = o.step
        WHERE o.publish_after <= now() AND o.published - o.probes < CAST(:most AS int)
            AND o.type || '/' || o.step || CASE WHEN o.available_at > now() THEN ' later' ELSE '' END
                <> ALL(CAST(:away AS text[]))
            AND o.type || '/' || o.step <> ALL(holding.lanes)
            AND (holding.tenants = '{}'
                OR (SELECT tenant FROM operations WHERE id = o.operation_id) <> ALL(holding.tenants))
            AND (
                (o.published > 0 OR (o.handed_over AND o.type || '/' || o.step = ANY(CAST(:paced AS text[]))))
                AND o.available_at > p.newest_available_at AND p.claimed_at > now() - interval '2 minutes'
            ) IS NOT TRUE
        ORDER BY o.publish_after
        LIMIT CAST(:batch AS int)
        FOR NO KEY UPDATE OF o SKIP LOCKED
    ) AS due
    WHERE x.operation_id = due.operation_id AND x.step = due.step
    RETURNING x.operation_id, x.type, x.step, x.dispatch, x.traceparent,
        CASE WHEN x.available_at > now() THEN x.available_at END AS due_at, x.published
)
SELECT coalesce(json_agg(json_build_array(operation_id, type, step, dispatch, traceparent, due_at, published)), '[]')
    AS dispatches
FROM leased;

-- name: return_rows
-- Gives rows back that could not be handed over, to be tried again after the delay; a claimed row is gone already.
UPDATE outbox AS x SET
    publish_after = least(x.publish_after, now() + make_interval(secs => :delay)),
    published = greatest(x.published - CAST(:counted AS int), 0),
    handed_over = false
FROM unnest(CAST(:operation_ids AS uuid[]), CAST(:steps AS text[]), CAST(:dispatches AS int[]))
    AS back (operation_id, step, dispatch)
WHERE x.operation_id = back.operation_id AND x.step = back.step AND x.dispatch = back.dispatch;

-- name: refuse_row
-- Counts that this message cannot be published: back it off, and past the limit end its step for review.
-- The step's row is locked first, as by every claim, so row and step end together or not at all.
WITH held AS (
    SELECT operation_id, step, dispatch
    FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND dispatch = :dispatch AND state = 'queued'
    FOR NO KEY UPDATE
), counted AS (
    SELECT x.operation_id, x.step, x.refused + 1 AS refused, x.refused + 1 >= CAST(:limit AS int) AS parked
    FROM outbox AS x
    INNER JOIN held ON held.operation_id = x.operation_id AND held.step = x.step AND held.dispatch = x.dispatch
), ended AS (
    UPDATE steps AS s SET
        state = 'exhausted', finished_at = now(), error_kind = :error_kind, error = :error
    FROM counted
    WHERE s.operation_id = counted.operation_id AND s.step = counted.step AND s.state = 'queued' AND counted.parked
), dropped AS (
    DELETE FROM outbox AS x USING counted
    WHERE x.operation_id = counted.operation_id AND x.step = counted.step AND counted.parked
), delayed AS (
    UPDATE outbox AS x SET
        refused = x.refused + 1,
        publish_after = now() + interval '1 minute' * power(2, least(x.refused, 6))
    FROM counted
    WHERE x.operation_id = counted.operation_id AND x.step = counted.step AND NOT counted.parked
)
SELECT refused, parked FROM counted;

-- name: outbox_pulse
-- How many rows are due and unpublished, how many published and unclaimed since they are due, the age of the oldest
-- (seconds), and how many are held back and in none of these.
WITH holding AS MATERIALIZED (
    SELECT held_lanes(CAST(:lanes AS text[]), CAST(:providers AS text[])) AS lanes, held_tenants() AS tenants
), rows AS (
    SELECT x.published, x.publish_after, x.available_at,
        x.type || '/' || x.step = ANY(holding.lanes) OR (holding.tenants <> '{}'
            AND (SELECT tenant FROM operations WHERE id = x.operation_id) = ANY(holding.tenants)) AS held
    FROM outbox AS x
    CROSS JOIN holding
)
SELECT count(*) FILTER (WHERE published = 0 AND publish_after <= now() AND NOT held) AS unpublished,
    count(*) FILTER (WHERE published > 0 AND available_at <= now() AND NOT held) AS unclaimed,
    coalesce(extract(epoch FROM now() - min(available_at) FILTER (WHERE available_at <= now() AND NOT held)), 0)::float8
        AS oldest_age,
    count(*) FILTER (WHERE held) AS held
FROM rows;

-- name: end_undelivered
-- Ends steps whose row was handed over again and again without a claim, its last turn over: somebody must look. What
-- is paused or held was not to be claimed. The step's row is locked first, as by every claim.
WITH holding AS MATERIALIZED (
    SELECT held_lanes(CAST(:lanes AS text[]), CAST(:providers AS text[])) AS lanes, held_tenants() AS tenants
), lost AS (
    SELECT s.operation_id, s.step, s.dispatch
    FROM outbox AS x
    CROSS JOIN holding
    INNER JOIN steps AS s ON s.operation_id = x.operation_id AND s.step = x.step
        AND s.dispatch = x.dispatch AND s.state = 'queued'
    INNER JOIN operations AS o ON o.id = x.operation_id
    WHERE x.published - x.probes >= CAST(:most AS int) AND x.publish_after <= now()
        AND x.type || '/' || x.step <> ALL(holding.lanes) AND o.tenant <> ALL(holding.tenants)
    ORDER BY x.publish_after
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), ended AS (
    UPDATE steps AS s SET
        state = 'exhausted', finished_at = now(), error_kind = 'undeliverable', error = :error
    FROM lost
    WHERE s.operation_id = lost.operation_id AND s.step = lost.step AND s.dispatch = lost.dispatch
        AND s.state = 'queued'
    RETURNING s.operation_id, s.step, s.dispatch, s.state
), dropped AS (
    DELETE FROM outbox AS x USING ended
    WHERE x.operation_id = ended.operation_id AND x.step = ended.step AND ended.state <> 'queued'
)
SELECT operation_id, step, dispatch, state FROM ended;
