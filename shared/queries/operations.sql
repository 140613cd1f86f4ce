-- Identity, acceptance, status, cancel.

-- name: accept_operation
-- Writes identity, operation, steps and the outbox rows of the first steps; no row when the identity exists. One with
-- an ordering key, or whose tenant has no room, is not admitted: its steps wait, and it has no outbox row.
WITH accepted AS (
    INSERT INTO identities (tenant, type, key, operation_id, fingerprint, fingerprint_version)
    VALUES (:tenant, :type, :key, uuidv7(), :fingerprint, :fingerprint_version)
    ON CONFLICT (tenant, type, key) DO NOTHING
    RETURNING operation_id, CASE
        WHEN CAST(:ordering_key AS text) IS NOT NULL THEN false
        WHEN CAST(:in_flight AS int) IS NULL OR CAST(:not_before AS timestamptz) > now() THEN true
        ELSE may_start_at_once(:tenant, :in_flight)
    END AS admitted
), operation AS (
    INSERT INTO operations (id, tenant, type, key, input, not_before, deadline, ordering_key, position, traceparent,
        steps_left, steps_alive, admitted_at)
    SELECT operation_id, :tenant, :type, :key, CAST(:input AS json), CAST(:not_before AS timestamptz),
        CAST(:deadline AS timestamptz), :ordering_key,
        CASE WHEN CAST(:ordering_key AS text) IS NOT NULL THEN next_position(:tenant, :ordering_key) END, :traceparent,
        cardinality(CAST(:steps AS text[])), CASE WHEN admitted THEN CAST(:first_steps AS int) ELSE 0 END,
        CASE WHEN admitted THEN now() END
    FROM accepted
    RETURNING id, not_before, admitted_at IS NOT NULL AS admitted
), planned AS (
    INSERT INTO steps (operation_id, step, needs, needs_left, state, dispatch, available_at)
    SELECT operation.id, plan.step, string_to_array(plan.needs, ','), plan.needs_left,
        CASE WHEN operation.admitted AND plan.needs_left = 0 THEN 'queued' ELSE 'waiting' END,
        CASE WHEN operation.admitted AND plan.needs_left = 0 THEN 1 ELSE 0 END,
        CASE WHEN operation.admitted AND plan.needs_left = 0 THEN greatest(now(), operation.not_before) END
    FROM operation
    CROSS JOIN unnest(CAST(:steps AS text[]), CAST(:needs AS text[]), CAST(:needs_left AS int[]))
        AS plan (step, needs, needs_left)
    RETURNING operation_id, step, state, dispatch, available_at
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, :type, dispatch, available_at,
        outbox_turn(available_at, :writer_lease), writer_hands_over(available_at, :writer_lease), :traceparent
    FROM planned
    WHERE state = 'queued'
    RETURNING step, dispatch, available_at
)
SELECT operation.id, operation.admitted, sent.step, sent.dispatch, sent.available_at <= now() + outbox_horizon() AS due,
    CASE WHEN sent.available_at > now() THEN sent.available_at END AS due_at
FROM operation
LEFT JOIN sent ON true;

-- name: find_identity
-- The recorded identity with what a later request is compared to; input and options are null once pruned.
SELECT i.operation_id, i.fingerprint, i.fingerprint_version, o.input::text AS input, o.not_before, o.deadline, o.ordering_key,
    o.id IS NOT NULL AS kept
FROM identities AS i
LEFT JOIN operations AS o ON o.id = i.operation_id
WHERE i.tenant = :tenant AND i.type = :type AND i.key = :key;

-- name: read_operation
-- One operation of a tenant with its steps as JSON, and what it waits for to be admitted.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at, o.cancel_requested_at, o.not_before,
    o.deadline, o.ordering_key,
    CASE
        WHEN o.state <> 'requested' THEN NULL
        WHEN o.starts_at > now() THEN 'not_before'
        WHEN o.admitted_at IS NOT NULL THEN NULL
        WHEN EXISTS (
            SELECT FROM operations AS holder
            WHERE holder.tenant = o.tenant AND holder.ordering_key = o.ordering_key
                AND holder.state IN ('requested', 'running', 'needs_review')
                AND (holder.admitted_at IS NOT NULL OR holder.state <> 'requested')
        ) OR EXISTS (
            SELECT FROM operations AS earlier
            WHERE earlier.tenant = o.tenant AND earlier.ordering_key = o.ordering_key
                AND earlier.position < o.position AND earlier.admitted_at IS NULL AND earlier.state = 'requested'
                AND earlier.starts_at <= now()
        ) THEN 'ordering_key'
        ELSE 'tenant_limit'
    END AS waiting_for,
    (
        SELECT json_agg(json_build_object(
            'step', s.step, 'state', s.state, 'attempt', s.attempt, 'failures', s.failures,
            'available_at', s.available_at, 'attempt_started_at', s.attempt_started_at,
            'finished_at', s.finished_at, 'result', s.result, 'error_kind', s.error_kind, 'error', s.error,
            'needs', s.needs, 'generation', s.generation,
            'unresolved_since', CASE WHEN s.state = 'unresolved' THEN coalesce(
                (
                    SELECT min(e.unknown_since) FROM effects AS e
                    WHERE e.operation_id = s.operation_id AND e.step = s.step
                ), s.finished_at
            ) END
        ) ORDER BY s.step)
        FROM steps AS s
        WHERE s.operation_id = o.id
    ) AS steps
FROM operations AS o
WHERE o.id = CAST(:operation_id AS uuid) AND o.tenant = :tenant;

-- name: list_operations
-- A page of a tenant's operations, newest first, after a cursor, optionally of one state or type.
SELECT o.id, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.tenant = :tenant
    AND o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:state AS text) IS NULL OR o.state = :state)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: lock_steps
-- Locks the steps of an operation in the order in which a settle does, those that run first: no deadlock with one.
SELECT s.step
FROM steps AS s
INNER JOIN operations AS o ON o.id = s.operation_id
WHERE s.operation_id = CAST(:operation_id AS uuid) AND o.tenant = :tenant
ORDER BY s.state <> 'running', s.step
FOR NO KEY UPDATE OF s;

-- name: cancel_operation
-- Cancels the steps that have not started and asks the running ones to stop; no row when nothing was left to cancel.
WITH asked AS (
    UPDATE operations SET cancel_requested_at = coalesce(cancel_requested_at, now())
    WHERE id = CAST(:operation_id AS uuid) AND tenant = :tenant AND state IN ('requested', 'running')
    RETURNING id
)
UPDATE steps SET
    cancel_requested_at = coalesce(steps.cancel_requested_at, now()),
    state = CASE WHEN steps.state = 'running' THEN steps.state ELSE 'cancelled' END,
    finished_at = CASE WHEN steps.state = 'running' THEN NULL ELSE now() END
FROM asked
WHERE steps.operation_id = asked.id AND steps.state IN ('waiting', 'queued', 'running')
RETURNING steps.step, steps.state;

-- name: drop_outbox_of_stopped_steps
-- Removes the outbox rows of steps that can no longer start; a statement of its own, to see rows just committed.
DELETE FROM outbox USING steps
WHERE outbox.operation_id = CAST(:operation_id AS uuid) AND steps.operation_id = outbox.operation_id
    AND steps.step = outbox.step AND steps.state NOT IN ('queued', 'running');
