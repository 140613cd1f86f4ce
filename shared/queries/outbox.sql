-- The outbox: leased to a publisher for a while, never removed here; a row dies in the claim of its dispatch.

-- name: lease_due_rows
-- Leases due rows in due order to this relay: their next turn moves on by a minute, doubling to an hour.
UPDATE outbox AS x SET
    published = x.published + 1,
    publish_after = now() + least(interval '1 hour', interval '1 minute' * power(2, least(x.published, 6)))
FROM (
    SELECT operation_id, step
    FROM outbox
    WHERE publish_after <= now()
    ORDER BY publish_after, operation_id
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE SKIP LOCKED
) AS due
WHERE x.operation_id = due.operation_id AND x.step = due.step
RETURNING x.operation_id, x.step, x.type, x.dispatch, x.traceparent;

-- name: return_rows
-- Gives rows back that could not be published, to be tried again after the delay; a claimed row is gone already.
UPDATE outbox AS x SET
    publish_after = least(x.publish_after, now() + make_interval(secs => :delay)),
    published = greatest(x.published - CAST(:counted AS int), 0)
FROM unnest(CAST(:operation_ids AS uuid[]), CAST(:steps AS text[]), CAST(:dispatches AS int[]))
    AS back (operation_id, step, dispatch)
WHERE x.operation_id = back.operation_id AND x.step = back.step AND x.dispatch = back.dispatch;

-- name: refuse_row
-- Counts that Pub/Sub called this message invalid: back it off, and past the limit end its step for review.
WITH refused AS (
    UPDATE outbox SET
        refused = outbox.refused + 1,
        publish_after = now() + interval '1 minute' * power(2, least(outbox.refused, 6))
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND dispatch = :dispatch
    RETURNING operation_id, step, dispatch, refused
), ended AS (
    UPDATE steps AS s SET
        state = 'exhausted', finished_at = now(), error_kind = 'undeliverable', error = :error
    FROM refused
    WHERE s.operation_id = refused.operation_id AND s.step = refused.step AND s.dispatch = refused.dispatch
        AND s.state = 'queued' AND refused.refused >= CAST(:limit AS int)
    RETURNING s.operation_id
)
SELECT refused.refused, ended.operation_id IS NOT NULL AS parked
FROM refused
LEFT JOIN ended ON true;

-- name: outbox_pulse
-- How many rows are due and unpublished, how many published and unclaimed, and the age of the oldest (seconds).
SELECT count(*) FILTER (WHERE published = 0 AND publish_after <= now()) AS unpublished,
    count(*) FILTER (WHERE published > 0) AS unclaimed,
    coalesce(extract(epoch FROM now() - min(available_at) FILTER (WHERE available_at <= now())), 0)::float8 AS oldest_age
FROM outbox;
