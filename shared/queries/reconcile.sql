-- What time decides: deadlines that have passed, records that are old enough to go.

-- name: admit_overdue_operations
-- Admits operations whose deadline passed while they waited, out of turn and beyond every limit: no claim starts them,
-- end_overdue_steps ends them.
WITH overdue AS (
    SELECT s.operation_id, s.step
    FROM operations AS o
    INNER JOIN steps AS s ON s.operation_id = o.id
    WHERE o.deadline <= now() AND o.state = 'requested' AND o.admitted_at IS NULL
        AND s.state = 'waiting' AND s.needs_left = 0
    ORDER BY s.operation_id, s.step
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), queued AS (
    UPDATE steps AS s SET state = 'queued', dispatch = s.dispatch + 1, available_at = now()
    FROM overdue
    WHERE s.operation_id = overdue.operation_id AND s.step = overdue.step AND s.state = 'waiting' AND s.needs_left = 0
    RETURNING s.operation_id, s.step, s.dispatch
), admitted AS (
    UPDATE operations AS o SET admitted_at = coalesce(o.admitted_at, now())
    WHERE o.id IN (SELECT queued.operation_id FROM queued)
    RETURNING o.id, o.type, o.traceparent
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT queued.operation_id, queued.step, admitted.type, queued.dispatch, now(), outbox_turn(now(), 0), false,
        admitted.traceparent
    FROM queued
    INNER JOIN admitted ON admitted.id = queued.operation_id
)
SELECT operation_id, step FROM queued;

-- name: end_overdue_steps
-- Exhausts queued steps that may not start any more: the operation's deadline has passed, or the step's own since it was
-- first due. Left alone, as by a claim: what a cancel ends, and an attempt that looks an open effect up. Every queued
-- step has an outbox row, so that those with a deadline of their own are found there.
WITH policy AS (
    SELECT plan.type, plan.step, plan.deadline
    FROM unnest(CAST(:operation_types AS text[]), CAST(:steps AS text[]), CAST(:deadlines AS float8[]))
        AS plan (type, step, deadline)
), late AS (
    SELECT s.operation_id, s.step, s.dispatch
    FROM operations AS o
    INNER JOIN steps AS s ON s.operation_id = o.id
    WHERE o.deadline <= now() AND o.state IN ('requested', 'running') AND s.state = 'queued'
    UNION
    SELECT s.operation_id, s.step, s.dispatch
    FROM outbox AS x
    INNER JOIN policy ON policy.type = x.type AND policy.step = x.step
    INNER JOIN steps AS s ON s.operation_id = x.operation_id AND s.step = x.step
    WHERE s.state = 'queued' AND coalesce(s.due_at, s.available_at) + make_interval(secs => policy.deadline) <= now()
), held AS (
    SELECT s.operation_id, s.step
    FROM late
    INNER JOIN steps AS s ON s.operation_id = late.operation_id AND s.step = late.step
    WHERE s.state = 'queued' AND s.dispatch = late.dispatch AND s.cancel_requested_at IS NULL
        AND NOT (s.lookups > 0 AND EXISTS (
            SELECT FROM effects AS e
            WHERE e.operation_id = s.operation_id AND e.step = s.step AND e.state IN ('intended', 'unknown')
        ))
    ORDER BY s.operation_id, s.step
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), ended AS (
    UPDATE steps AS s SET
        state = 'exhausted', finished_at = now(), error_kind = 'deadline_passed',
        error = 'its deadline passed before it could start'
    FROM held
    WHERE s.operation_id = held.operation_id AND s.step = held.step AND s.state = 'queued'
    RETURNING s.operation_id, s.step
), taken AS (
    DELETE FROM outbox USING ended
    WHERE outbox.operation_id = ended.operation_id AND outbox.step = ended.step
)
SELECT operation_id, step FROM ended;

-- name: prune_operations
-- Removes operations that finished long ago, with their steps, attempts, settled effects and closed review rows; none
-- under an open effect, an outbox row or an open review row. Ids grow with time: the oldest are the first of the key.
-- Their identities learn it. A key goes with the last operation that it was given to, unless one is unfinished.
WITH old AS (
    SELECT o.id, o.tenant, o.ordering_key, o.position
    FROM operations AS o
    WHERE o.id < (SELECT uuidv7(-make_interval(secs => :kept))) AND o.finished_at < now() - make_interval(secs => :kept)
        AND NOT EXISTS (
            SELECT FROM effects AS e
            WHERE e.operation_id = o.id AND e.state NOT IN ('confirmed', 'rejected', 'not_sent')
        )
        AND NOT EXISTS (SELECT FROM outbox AS x WHERE x.operation_id = o.id)
        AND NOT EXISTS (SELECT FROM dead_letters AS d WHERE d.operation_id = o.id AND d.closed_at IS NULL)
    ORDER BY o.id
    LIMIT CAST(:batch AS int)
    FOR UPDATE OF o SKIP LOCKED
), ledger AS (
    DELETE FROM effects AS e USING old
    WHERE e.operation_id = old.id AND e.state IN ('confirmed', 'rejected', 'not_sent')
), letters AS (
    DELETE FROM dead_letters AS d USING old WHERE d.operation_id = old.id AND d.closed_at IS NOT NULL
), known AS (
    UPDATE identities AS i SET pruned_at = now() FROM old WHERE i.operation_id = old.id
), gone AS (
    DELETE FROM operations AS o USING old
    WHERE o.id = old.id
    RETURNING old.tenant, old.ordering_key, old.position
), keys AS (
    DELETE FROM ordering_keys AS k USING gone
    WHERE k.tenant = gone.tenant AND k.ordering_key = gone.ordering_key AND k.tail <= gone.position  -- a dry run made it again, with 0
        AND NOT EXISTS (
            SELECT FROM operations AS o
            WHERE o.tenant = gone.tenant AND o.ordering_key = gone.ordering_key AND o.admitted_at IS NULL
                AND o.state = 'requested'
        )
)
SELECT count(*) AS pruned FROM gone;

-- name: prune_identities
-- Forgets identities that are old enough and whose operation's record has been gone for the rest of their time.
WITH old AS (
    SELECT i.operation_id
    FROM identities AS i
    WHERE i.operation_id < (SELECT uuidv7(-make_interval(secs => :kept)))
        AND i.accepted_at < now() - make_interval(secs => :kept)
        AND i.pruned_at < now() - make_interval(secs => :kept_after)
        AND NOT EXISTS (SELECT FROM operations AS o WHERE o.id = i.operation_id)
    ORDER BY i.operation_id
    LIMIT CAST(:batch AS int)
    FOR UPDATE OF i SKIP LOCKED
), gone AS (
    DELETE FROM identities AS i USING old WHERE i.operation_id = old.operation_id RETURNING i.operation_id
)
SELECT count(*) AS pruned FROM gone;
