-- A step's way from its message to its end: claim, heartbeat, settle, and the sweep of expired leases.

-- name: claim_step
-- Starts the step for the one message that may: counts the attempt, takes the lease, takes the outbox row away. After a
-- cancel or a deadline only an attempt that reconcile has queued to look an open effect up: it sends nothing. What is
-- paused, or waits for a provider whose circuit is open, does not start; a probe may try that provider.
WITH claimed AS (
    UPDATE steps AS s SET
        state = 'running', attempt = s.attempt + 1, failures = s.failures + 1, fence = s.fence + 1,
        attempt_started_at = now(), lease_expires_at = now() + make_interval(secs => :lease),
        due_at = coalesce(s.due_at, s.available_at)
    FROM operations AS o
    WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step AND s.state = 'queued'
        AND s.dispatch = :dispatch AND s.available_at <= now() + interval '2 seconds'
        AND s.failures < :attempts AND o.id = s.operation_id AND o.type = :type
        AND ((s.cancel_requested_at IS NULL AND (o.deadline IS NULL OR o.deadline > now())
                AND (CAST(:step_deadline AS float8) IS NULL
                    OR coalesce(s.due_at, s.available_at) + make_interval(secs => :step_deadline) > now()))
            OR (s.lookups > 0 AND EXISTS (
                SELECT FROM effects AS e
                WHERE e.operation_id = s.operation_id AND e.step = s.step AND e.state IN ('intended', 'unknown')
            )))
        AND NOT EXISTS (
            SELECT FROM pauses AS p
            WHERE (p.kind = 'step' AND p.name = o.type || '/' || s.step) OR (p.kind = 'tenant' AND p.name = o.tenant)
                OR (p.kind = 'provider' AND p.name = ANY(CAST(:providers AS text[])))
        )
        AND (CAST(:probing AS boolean) OR NOT EXISTS (
            SELECT FROM circuits AS c
            WHERE c.open_until IS NOT NULL AND c.provider = ANY(CAST(:providers AS text[]))
        ))
    RETURNING s.operation_id, s.step, s.attempt, s.fence, s.failures, s.waits, s.generation, s.needs, s.available_at,
        o.type, o.tenant, o.key, o.input, o.accepted_at, o.deadline,
        s.cancel_requested_at IS NOT NULL OR coalesce(o.deadline <= now(), false)
            OR coalesce(s.due_at + make_interval(secs => :step_deadline) <= now(), false) AS ending
), taken AS (
    DELETE FROM outbox USING claimed
    WHERE outbox.operation_id = claimed.operation_id AND outbox.step = claimed.step
), moved_on AS (
    UPDATE progress AS p SET
        newest_available_at = greatest(p.newest_available_at, recent.available_at), claimed_at = now()
    FROM (
        SELECT p.type, p.step, claimed.available_at
        FROM claimed
        INNER JOIN progress AS p ON p.type = claimed.type AND p.step = claimed.step
        WHERE p.claimed_at < now() - interval '1 second'
        FOR NO KEY UPDATE OF p SKIP LOCKED
    ) AS recent
    WHERE p.type = recent.type AND p.step = recent.step
)
SELECT claimed.attempt, claimed.fence, claimed.failures, claimed.waits, claimed.generation, claimed.tenant,
    claimed.key, claimed.input, claimed.accepted_at, claimed.deadline, claimed.ending,
    (
        SELECT json_object_agg(n.step, n.result)
        FROM steps AS n
        WHERE n.operation_id = claimed.operation_id AND n.step = ANY(claimed.needs)
    ) AS results
FROM claimed;

-- name: refuse_step
-- Ends a step whose message came but which may not start again: cancelled, or its budget or a deadline is spent.
WITH refused AS (
    UPDATE steps AS s SET
        state = CASE WHEN s.cancel_requested_at IS NOT NULL THEN 'cancelled' ELSE 'exhausted' END,
        finished_at = now(),
        error_kind = CASE WHEN s.failures >= :attempts THEN coalesce(s.error_kind, 'attempts_spent')
            ELSE 'deadline_passed' END
    FROM operations AS o
    WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step AND s.state = 'queued'
        AND s.dispatch = :dispatch AND s.available_at <= now() + interval '2 seconds' AND o.id = s.operation_id
        AND o.type = :type
        AND (s.failures >= :attempts
            OR ((s.cancel_requested_at IS NOT NULL OR o.deadline <= now()
                    OR coalesce(s.due_at, s.available_at) + make_interval(secs => :step_deadline) <= now())
                AND NOT (s.lookups > 0 AND EXISTS (
                    SELECT FROM effects AS e
                    WHERE e.operation_id = s.operation_id AND e.step = s.step AND e.state IN ('intended', 'unknown')
                ))))
    RETURNING s.operation_id, s.step, s.state
), taken AS (
    DELETE FROM outbox USING refused
    WHERE outbox.operation_id = refused.operation_id AND outbox.step = refused.step
        AND refused.state <> 'queued'  -- a confirmed effect has spared the step a cancel
)
SELECT state FROM refused;

-- name: explain_claim
-- Why a message may not start its step; no row when no such operation, step or identity is known. half_open is null
-- unless a provider's circuit is open, and true when each such circuit may be tried again.
SELECT i.operation_id IS NOT NULL AS known, s.state, s.dispatch, s.available_at > now() + interval '2 seconds' AS early,
    s.result, o.type,
    EXISTS (
        SELECT FROM pauses AS p
        WHERE (p.kind = 'step' AND p.name = o.type || '/' || s.step) OR (p.kind = 'tenant' AND p.name = o.tenant)
            OR (p.kind = 'provider' AND p.name = ANY(CAST(:providers AS text[])))
    ) AS paused,
    (
        SELECT bool_and(c.open_until <= now())
        FROM circuits AS c
        WHERE c.open_until IS NOT NULL AND c.provider = ANY(CAST(:providers AS text[]))
    ) AS half_open
FROM (SELECT CAST(:operation_id AS uuid) AS id) AS asked
LEFT JOIN identities AS i ON i.operation_id = asked.id
LEFT JOIN operations AS o ON o.id = asked.id
LEFT JOIN steps AS s ON s.operation_id = asked.id AND s.step = :step;

-- name: extend_lease
-- Heartbeat: moves the lease forward under the fence, never past the attempt's own end; no row: the lease is lost.
UPDATE steps SET
    lease_expires_at = greatest(lease_expires_at, least(now() + make_interval(secs => :lease),
        attempt_started_at + make_interval(secs => :longest)))
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
RETURNING cancel_requested_at IS NOT NULL AS cancelled;

-- name: hold_step
-- Takes the row lock of a step that is still held under the fence; no row: the lease is lost.
SELECT fence FROM steps
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
FOR NO KEY UPDATE;

-- name: settle_succeeded
-- Completes the step under its fence, counts down the steps that need it and queues those that need no more; a step
-- with an open effect becomes unresolved instead (check_step_change), which the state returned tells.
WITH settled AS (
    UPDATE steps SET
        state = 'succeeded', result = CAST(:result AS json), finished_at = now(), lease_expires_at = NULL,
        error_kind = NULL, error = NULL
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    RETURNING operation_id, step, state, attempt, generation, dispatch, fence, attempt_started_at
), history AS (
    INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, started_at)
    SELECT operation_id, step, attempt, generation, dispatch, fence, state, attempt_started_at
    FROM settled
), ready AS (
    UPDATE steps AS child SET
        needs_left = child.needs_left - 1,
        state = CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN 'queued' ELSE child.state END,
        dispatch = child.dispatch + CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN 1 ELSE 0 END,
        available_at = CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN now() ELSE child.available_at END
    FROM settled
    WHERE settled.state = 'succeeded' AND child.operation_id = settled.operation_id
        AND settled.step = ANY(child.needs) AND child.needs_left > 0
    RETURNING child.operation_id, child.step, child.dispatch, child.state
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, :type, dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), :traceparent
    FROM ready
    WHERE state = 'queued'
    RETURNING step, dispatch
)
SELECT settled.state, sent.step, sent.dispatch
FROM settled
LEFT JOIN sent ON true;

-- name: settle_failed
-- Ends an attempt that did not succeed, under its fence: queued again while budget is left, else a state that stops.
WITH held AS (
    SELECT operation_id, step,
        CASE
            WHEN CAST(:outcome AS text) IN ('failed', 'unresolved') THEN CAST(:outcome AS text)
            WHEN :outcome = 'wait' AND waits < CAST(:max_waits AS int) THEN 'queued'
            WHEN :outcome = 'retry' AND failures < CAST(:attempts AS int) THEN 'queued'
            WHEN :outcome = 'handed_back' THEN 'queued'
            ELSE 'exhausted'
        END AS next
    FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
), settled AS (
    UPDATE steps AS s SET
        state = held.next, lease_expires_at = NULL,
        dispatch = s.dispatch + CASE WHEN held.next = 'queued' THEN 1 ELSE 0 END,
        available_at = CASE WHEN held.next = 'queued' THEN now() + make_interval(secs => :delay) ELSE s.available_at END,
        finished_at = CASE WHEN held.next = 'queued' THEN NULL ELSE now() END,
        failures = s.failures - CASE WHEN :outcome IN ('wait', 'handed_back') THEN 1 ELSE 0 END,
        waits = s.waits + CASE WHEN :outcome = 'wait' THEN 1 ELSE 0 END,
        error_kind = :error_kind, error = :error
    FROM held
    WHERE s.operation_id = held.operation_id AND s.step = held.step AND s.fence = :fence AND s.state = 'running'
    RETURNING s.operation_id, s.step, s.state, s.attempt, s.generation, s.dispatch, s.fence, s.attempt_started_at,
        s.available_at
), history AS (
    INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, error_kind, error,
        started_at)
    SELECT operation_id, step, attempt, generation, dispatch - CASE WHEN state = 'queued' THEN 1 ELSE 0 END, fence,
        CASE WHEN state = 'queued' THEN :outcome ELSE state END, :error_kind, :error, attempt_started_at
    FROM settled
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, :type, dispatch, available_at,
        outbox_turn(available_at, :writer_lease), writer_hands_over(available_at, :writer_lease), :traceparent
    FROM settled
    WHERE state = 'queued'
)
SELECT settled.state, settled.dispatch, settled.available_at <= now() + outbox_horizon() AS due,
    CASE WHEN settled.available_at > now() THEN settled.available_at END AS due_at
FROM settled;

-- name: read_back_settle
-- What a settle whose answer was lost has written under its fence, and what it made due that nobody has published; no
-- row: none of it landed.
SELECT CASE WHEN a.outcome IN ('retry', 'wait') THEN 'queued' ELSE a.outcome END AS state, due.step, due.dispatch
FROM attempts AS a
LEFT JOIN (
    SELECT x.operation_id, x.step, x.dispatch, s.needs
    FROM outbox AS x
    INNER JOIN steps AS s ON s.operation_id = x.operation_id AND s.step = x.step
    WHERE x.published = 0 AND x.available_at <= now()
) AS due ON due.operation_id = a.operation_id AND (due.step = a.step OR a.step = ANY(due.needs))
WHERE a.operation_id = CAST(:operation_id AS uuid) AND a.step = :step AND a.fence = :fence
    AND a.outcome NOT IN ('abandoned', 'handed_back');

-- name: move_expired_leases
-- Gives each step whose lease ran out its next dispatch, or ends it when its budget is spent; only what time decided.
WITH policy AS (
    SELECT plan.type, plan.step, plan.attempts
    FROM unnest(CAST(:operation_types AS text[]), CAST(:steps AS text[]), CAST(:attempts AS int[])) AS plan (type, step, attempts)
), expired AS (
    SELECT s.operation_id, s.step, s.fence, s.dispatch AS held_dispatch, o.type, o.traceparent, policy.attempts
    FROM steps AS s
    INNER JOIN operations AS o ON o.id = s.operation_id
    LEFT JOIN policy ON policy.type = o.type AND policy.step = s.step
    WHERE s.state = 'running' AND s.lease_expires_at < now()
    ORDER BY s.lease_expires_at
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), moved AS (
    UPDATE steps AS s SET
        state = CASE WHEN s.failures < expired.attempts THEN 'queued' ELSE 'exhausted' END,
        dispatch = s.dispatch + CASE WHEN s.failures < expired.attempts THEN 1 ELSE 0 END,
        available_at = CASE WHEN s.failures < expired.attempts THEN now() ELSE s.available_at END,
        finished_at = CASE WHEN s.failures < expired.attempts THEN NULL ELSE now() END,
        lease_expires_at = NULL,
        error_kind = CASE WHEN expired.attempts IS NULL THEN 'incompatible' ELSE 'lease_expired' END,
        error = CASE WHEN expired.attempts IS NULL THEN 'pipeline.yaml no longer has this step'
            ELSE 'the process that held the step died or hung: its lease ran out' END
    FROM expired
    WHERE s.operation_id = expired.operation_id AND s.step = expired.step AND s.fence = expired.fence
        AND s.state = 'running' AND s.lease_expires_at < now()
    RETURNING s.operation_id, s.step, s.state, s.attempt, s.generation, s.dispatch, s.fence, s.attempt_started_at,
        s.error_kind, s.error, expired.held_dispatch, expired.type, expired.traceparent
), history AS (
    INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, error_kind, error,
        started_at)
    SELECT operation_id, step, attempt, generation, held_dispatch, fence, 'abandoned', error_kind, error,
        attempt_started_at
    FROM moved
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, type, dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), traceparent
    FROM moved
    WHERE state = 'queued'
)
SELECT operation_id, step, type, state, dispatch, traceparent FROM moved;

-- name: queue_startable_steps
-- Safety net: queues waiting steps whose needs are all met, should a release ever have been missed; not those of an
-- operation that waits to be admitted.
WITH startable AS (
    SELECT s.operation_id, s.step, o.type, o.traceparent, o.not_before
    FROM steps AS s
    INNER JOIN operations AS o ON o.id = s.operation_id
    WHERE s.state = 'waiting' AND s.needs_left = 0 AND o.admitted_at IS NOT NULL
    ORDER BY s.operation_id
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), queued AS (
    UPDATE steps AS s SET
        state = 'queued', dispatch = s.dispatch + 1, available_at = greatest(now(), startable.not_before)
    FROM startable
    WHERE s.operation_id = startable.operation_id AND s.step = startable.step AND s.state = 'waiting'
        AND s.needs_left = 0
    RETURNING s.operation_id, s.step, s.dispatch, s.available_at, startable.type, startable.traceparent
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, type, dispatch, available_at, outbox_turn(available_at, 0), false, traceparent
    FROM queued
)
SELECT operation_id, step FROM queued;
