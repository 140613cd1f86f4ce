-- The outbox: leased to a publisher for a while, never removed here; a row dies in the claim of its dispatch.

-- name: lease_due_rows
-- Leases due rows in due order to this relay, but for steps that are away: their next turn moves on by a minute,
-- doubling to an hour. One aggregated cell: a thousand rows one by one cost the driver as much as the lease.
WITH leased AS (
    UPDATE outbox AS x SET
        published = x.published + 1,
        publish_after = now() + least(interval '1 hour', interval '1 minute' * power(2, least(x.published, 6)))
    FROM (
        SELECT operation_id, step
        FROM outbox
        WHERE publish_after <= now() AND type || '/' || step <> ALL(CAST(:away AS text[]))
        ORDER BY publish_after, operation_id
        LIMIT CAST(:batch AS int)
        FOR NO KEY UPDATE SKIP LOCKED
    ) AS due
    WHERE x.operation_id = due.operation_id AND x.step = due.step
    RETURNING x.operation_id, x.type, x.step, x.dispatch, x.traceparent
)
SELECT coalesce(json_agg(json_build_array(operation_id, type, step, dispatch, traceparent)), '[]') AS dispatches
FROM leased;

-- name: return_rows
-- Gives rows back that could not be published, to be tried again after the delay; a claimed row is gone already.
UPDATE outbox AS x SET
    publish_after = least(x.publish_after, now() + make_interval(secs => :delay)),
    published = greatest(x.published - CAST(:counted AS int), 0)
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
-- How many rows are due and unpublished, how many published and unclaimed, and the age of the oldest (seconds).
SELECT count(*) FILTER (WHERE published = 0 AND publish_after <= now()) AS unpublished,
    count(*) FILTER (WHERE published > 0) AS unclaimed,
    coalesce(extract(epoch FROM now() - min(available_at) FILTER (WHERE available_at <= now())), 0)::float8 AS oldest_age
FROM outbox;
