-- What a person sees before deciding.

-- name: list_dead_letters
-- A page of the review queue, newest first, with what became of each letter's step meanwhile.
SELECT dl.id, dl.state, dl.cause, dl.operation_id, dl.step, dl.generation, dl.error_kind, left(dl.error, 300) AS error,
    dl.occurrences, dl.opened_at, dl.last_seen_at, dl.closed_at, dl.closed_reason, o.tenant, o.type, o.key,
    o.state AS operation_state, s.state AS step_state, s.generation AS step_generation
FROM dead_letters AS dl
LEFT JOIN operations AS o ON o.id = dl.operation_id
LEFT JOIN steps AS s ON s.operation_id = dl.operation_id AND s.step = dl.step
WHERE dl.state = :state
    AND dl.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:cause AS text) IS NULL OR dl.cause = :cause)
    AND (CAST(:tenant AS text) IS NULL OR o.tenant = :tenant)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
    AND (CAST(:step AS text) IS NULL OR dl.step = :step)
ORDER BY dl.id DESC
LIMIT CAST(:page_size AS int);

-- name: list_all_dead_letters
-- The same of open and closed ones: one state's order comes from an index, that of two from the key.
SELECT dl.id, dl.state, dl.cause, dl.operation_id, dl.step, dl.generation, dl.error_kind, left(dl.error, 300) AS error,
    dl.occurrences, dl.opened_at, dl.last_seen_at, dl.closed_at, dl.closed_reason, o.tenant, o.type, o.key,
    o.state AS operation_state, s.state AS step_state, s.generation AS step_generation
FROM dead_letters AS dl
LEFT JOIN operations AS o ON o.id = dl.operation_id
LEFT JOIN steps AS s ON s.operation_id = dl.operation_id AND s.step = dl.step
WHERE dl.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:cause AS text) IS NULL OR dl.cause = :cause)
    AND (CAST(:tenant AS text) IS NULL OR o.tenant = :tenant)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
    AND (CAST(:step AS text) IS NULL OR dl.step = :step)
ORDER BY dl.id DESC
LIMIT CAST(:page_size AS int);

-- name: count_open_dead_letters
-- How many letters are open, by cause, and since when the oldest is.
SELECT cause, count(*) AS open, min(opened_at) AS oldest FROM dead_letters WHERE state = 'open' GROUP BY cause
ORDER BY cause;

-- name: read_dead_letter
-- One letter, whole.
SELECT id, state, cause, operation_id, step, generation, error_kind, error, raw, subscription, message_id,
    delivery_count, occurrences, opened_at, last_seen_at, closed_at, closed_reason
FROM dead_letters
WHERE id = CAST(:dead_letter_id AS uuid);

-- name: search_operations
-- A page of operations, newest first. The searches that follow each begin with another index.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:state AS text) IS NULL OR o.state = :state)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: search_operations_of_key
-- The same of one key.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.key = :key
    AND o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:tenant AS text) IS NULL OR o.tenant = :tenant)
    AND (CAST(:state AS text) IS NULL OR o.state = :state)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: search_operations_of_tenant
-- The same of one tenant.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.tenant = :tenant
    AND o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:state AS text) IS NULL OR o.state = :state)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: search_operations_unfinished
-- The same of a tenant in a state in which few are.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.tenant = :tenant
    AND o.state = :state AND o.state NOT IN ('succeeded', 'cancelled')
    AND o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: search_operations_ended_badly
-- The same of every tenant or one in a state in which few end.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.accepted_at, o.finished_at
FROM operations AS o
WHERE o.state = :state AND o.state IN ('failed', 'cancelled', 'needs_review')
    AND o.id < coalesce(CAST(:cursor AS uuid), 'ffffffff-ffff-ffff-ffff-ffffffffffff')
    AND (CAST(:tenant AS text) IS NULL OR o.tenant = :tenant)
    AND (CAST(:type AS text) IS NULL OR o.type = :type)
ORDER BY o.id DESC
LIMIT CAST(:page_size AS int);

-- name: read_operation_whole
-- One operation of any tenant with its steps, attempts, effects, outbox rows, letters and review actions, as JSON.
SELECT o.id, o.tenant, o.type, o.key, o.state, o.input, o.accepted_at, o.finished_at, o.cancel_requested_at,
    o.not_before, o.deadline, o.ordering_key, now() AS read_at,
    (SELECT json_agg(json_build_object(
        'step', s.step, 'state', s.state, 'needs', s.needs, 'attempt', s.attempt, 'failures', s.failures,
        'waits', s.waits, 'dispatch', s.dispatch, 'generation', s.generation, 'available_at', s.available_at,
        'attempt_started_at', s.attempt_started_at, 'lease_expires_at', s.lease_expires_at,
        'finished_at', s.finished_at, 'result', s.result, 'error_kind', s.error_kind, 'error', s.error
    ) ORDER BY s.available_at NULLS LAST, s.step) FROM steps AS s WHERE s.operation_id = o.id) AS steps,
    (SELECT coalesce(json_agg(json_build_object(
        'step', a.step, 'attempt', a.attempt, 'generation', a.generation, 'dispatch', a.dispatch,
        'outcome', a.outcome, 'error_kind', a.error_kind, 'error', a.error, 'started_at', a.started_at,
        'ended_at', a.ended_at
    ) ORDER BY a.started_at), '[]') FROM attempts AS a WHERE a.operation_id = o.id) AS attempts,
    (SELECT coalesce(json_agg(json_build_object(
        'step', e.step, 'name', e.name, 'generation', e.generation, 'provider', e.provider, 'state', e.state,
        'permits', e.permits, 'unaccounted', e.unaccounted, 'lookups', e.lookups, 'reference', e.reference,
        'reason', e.reason, 'evidence', e.evidence, 'key_spent', e.key_spent, 'intended_at', e.intended_at,
        'unknown_since', e.unknown_since, 'confirmed_at', e.confirmed_at
    ) ORDER BY e.intended_at, e.generation), '[]') FROM effects AS e WHERE e.operation_id = o.id) AS effects,
    (SELECT coalesce(json_agg(json_build_object(
        'step', x.step, 'dispatch', x.dispatch, 'available_at', x.available_at, 'publish_after', x.publish_after,
        'published', x.published, 'created_at', x.created_at
    ) ORDER BY x.created_at), '[]') FROM outbox AS x WHERE x.operation_id = o.id) AS outbox,
    (SELECT coalesce(json_agg(json_build_object(
        'id', dl.id, 'step', dl.step, 'generation', dl.generation, 'cause', dl.cause, 'state', dl.state,
        'error_kind', dl.error_kind, 'error', dl.error, 'opened_at', dl.opened_at, 'last_seen_at', dl.last_seen_at,
        'closed_at', dl.closed_at, 'closed_reason', dl.closed_reason, 'occurrences', dl.occurrences
    ) ORDER BY dl.opened_at), '[]') FROM dead_letters AS dl WHERE dl.operation_id = o.id) AS dead_letters,
    (SELECT coalesce(json_agg(json_build_object(
        'id', r.id, 'at', r.at, 'actor', r.actor, 'action', r.action, 'mode', r.mode, 'reason', r.reason,
        'step', r.step, 'generation', r.generation, 'before', r.before, 'after', r.after
    ) ORDER BY r.id), '[]') FROM reviews AS r WHERE r.operation_id = o.id) AS reviews
FROM operations AS o
WHERE o.id = CAST(:operation_id AS uuid);

-- name: list_reviews_of_letter
-- The review actions on a letter that belongs to no operation.
SELECT id, at, actor, action, mode, reason FROM reviews WHERE dead_letter_id = CAST(:dead_letter_id AS uuid)
ORDER BY id;
