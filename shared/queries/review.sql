-- What only a person may decide: a step that came to rest goes on, or an effect is sent under a fresh key.

-- name: resume_step
-- Queues a step that came to rest once more, as a new generation with its whole budget, and closes its review row. No
-- row: it does not rest, or somebody was faster. It outranks a cancel that was asked for before; a deadline still holds.
WITH resumed AS (
    UPDATE steps AS s SET
        state = 'queued', generation = s.generation + 1, dispatch = s.dispatch + 1, failures = 0, waits = 0,
        lookups = 0, available_at = now(), due_at = NULL, finished_at = NULL, cancel_requested_at = NULL, error_kind = NULL,
        error = NULL
    FROM operations AS o
    WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step AND o.id = s.operation_id
        AND s.state IN ('unresolved', 'exhausted', 'failed')
    RETURNING s.operation_id, s.step, s.dispatch, s.generation, o.type, o.traceparent
), closed AS (
    UPDATE dead_letters AS dl SET state = 'closed', closed_at = now(), closed_reason = :decision
    FROM resumed
    WHERE dl.operation_id = resumed.operation_id AND dl.step = resumed.step AND dl.closed_at IS NULL
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, type, dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), traceparent
    FROM resumed
)
SELECT operation_id, type, step, dispatch, traceparent FROM resumed;

-- name: read_effect_identity
-- Of which identity an effect's key is made, and what the effect's current generation and state are.
SELECT o.tenant, o.type, o.key, e.generation, e.state
FROM operations AS o
INNER JOIN effects AS e ON e.operation_id = o.id AND e.step = :step AND e.name = :name
WHERE o.id = CAST(:operation_id AS uuid)
ORDER BY e.generation DESC
LIMIT 1;

-- name: renew_effect
-- Approves another generation of an effect that is known not to have happened, while its step rests: nobody can be
-- about to send the generation before. No row: it is confirmed, open or renewed already, or its step does not rest.
WITH resting AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND state IN ('unresolved', 'exhausted', 'failed')
    FOR NO KEY UPDATE
)
INSERT INTO effects (operation_id, step, name, generation, provider, state, provider_key, evidence,
    reason)
SELECT e.operation_id, e.step, e.name, e.generation + 1, e.provider, 'approved', :provider_key, 'review', :decision
FROM resting
INNER JOIN effects AS e ON e.operation_id = resting.operation_id AND e.step = resting.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state IN ('rejected', 'not_sent')
WHERE NOT EXISTS (
    SELECT FROM effects AS other
    WHERE other.operation_id = e.operation_id AND other.step = e.step AND other.name = e.name
        AND (other.generation > e.generation OR other.state = 'confirmed')
)
ON CONFLICT DO NOTHING
RETURNING generation;

-- name: lock_step_for_review
-- Locks a step and shows what a decision about it must know.
SELECT s.state, s.generation, s.error_kind, o.id AS operation_id, o.tenant, o.type, o.state AS operation_state,
    o.ordering_key, o.deadline IS NOT NULL AND o.deadline <= now() AS overdue,
    (
        SELECT dl.id FROM dead_letters AS dl
        WHERE dl.operation_id = s.operation_id AND dl.step = s.step AND dl.closed_at IS NULL
        ORDER BY dl.generation DESC
        LIMIT 1
    ) AS dead_letter_id
FROM steps AS s
INNER JOIN operations AS o ON o.id = s.operation_id
WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step
FOR NO KEY UPDATE OF s;

-- name: lock_effects_for_review
-- Locks a step's effects, every generation, and shows what each would come to.
SELECT name, generation, provider, state, version, permits, unaccounted, reference, reason, key_spent,
    key_expires_at IS NULL OR key_expires_at > now() AS key_lives
FROM effects
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step
ORDER BY name, generation
FOR NO KEY UPDATE;

-- name: look_up_first
-- Makes every effect of a resting step that is neither settled nor refused be looked up before it is sent again. Of its
-- generations the one that counts: what is known of an earlier one stays known, for nobody looks it up again.
UPDATE effects AS e SET
    state = 'unknown', unaccounted = greatest(e.unaccounted, 1), unknown_since = coalesce(e.unknown_since, now()),
    send_deadline = greatest(e.send_deadline, now()), key_expires_at = now(), version = e.version + 1
FROM steps AS s
WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step
    AND s.state IN ('unresolved', 'exhausted', 'failed')
    AND e.operation_id = s.operation_id AND e.step = s.step AND e.state IN ('intended', 'unknown', 'not_sent')
    AND NOT EXISTS (
        SELECT FROM effects AS other
        WHERE other.operation_id = e.operation_id AND other.step = e.step AND other.name = e.name
            AND (other.generation > e.generation OR other.state = 'confirmed')
    )
RETURNING e.name;

-- name: lift_deadline
-- Takes an operation's deadline away that has passed, so that an overdue step can run again, and tells which it was.
UPDATE operations SET deadline = NULL
WHERE id = CAST(:operation_id AS uuid) AND deadline <= now()
RETURNING old.deadline;

-- name: declare_effect
-- Records what a person found out about an open effect of a resting step: that it happened, or that it did not.
UPDATE effects AS e SET
    state = CASE WHEN CAST(:happened AS boolean) THEN 'confirmed' ELSE 'not_sent' END, unaccounted = 0,
    unknown_since = NULL, confirmed_at = CASE WHEN CAST(:happened AS boolean) THEN now() END,
    key_expires_at = CASE WHEN CAST(:happened AS boolean) THEN e.key_expires_at END,
    response = CASE WHEN CAST(:happened AS boolean) THEN CAST(:response AS json) END,
    reference = coalesce(:reference, e.reference), evidence = 'review', reason = :reason, version = e.version + 1
FROM steps AS s
WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step
    AND s.state IN ('unresolved', 'exhausted', 'failed')
    AND e.operation_id = s.operation_id AND e.step = s.step AND e.name = :name AND e.state IN ('intended', 'unknown')
RETURNING e.name;

-- name: resolve_step
-- Declares a resting step done, with its result, and queues what needs it, as a success does. No row: it does not rest,
-- or an effect of it is open.
WITH resolved AS (
    UPDATE steps AS s SET
        state = 'succeeded', result = CAST(:result AS json), finished_at = now(), error_kind = NULL, error = NULL
    FROM operations AS o
    WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step AND o.id = s.operation_id
        AND s.state IN ('unresolved', 'exhausted', 'failed')
        AND NOT EXISTS (
            SELECT FROM effects AS e
            WHERE e.operation_id = s.operation_id AND e.step = s.step AND e.state IN ('intended', 'unknown')
        )
    RETURNING s.operation_id, s.step, o.type, o.traceparent
), ready AS (
    UPDATE steps AS child SET
        needs_left = child.needs_left - 1,
        state = CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN 'queued' ELSE child.state END,
        dispatch = child.dispatch + CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN 1 ELSE 0 END,
        available_at = CASE WHEN child.needs_left = 1 AND child.state = 'waiting' THEN now() ELSE child.available_at END
    FROM resolved
    WHERE child.operation_id = resolved.operation_id AND resolved.step = ANY(child.needs) AND child.needs_left > 0
    RETURNING child.operation_id, child.step, child.dispatch, child.state, resolved.type, resolved.traceparent
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, type, dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), traceparent
    FROM ready
    WHERE state = 'queued'
    RETURNING step
)
SELECT resolved.step, (SELECT count(*) FROM sent) AS started FROM resolved;

-- name: discard_step
-- Gives a resting step up for good; what needs it never runs.
UPDATE steps SET state = 'discarded', finished_at = now()
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND state IN ('unresolved', 'exhausted', 'failed')
RETURNING step;

-- name: close_letter
-- Closes a letter that belongs to no step; no row: it is closed already.
UPDATE dead_letters SET state = 'closed', closed_at = now(), closed_reason = :decision
WHERE id = CAST(:dead_letter_id AS uuid) AND closed_at IS NULL
RETURNING id;

-- name: record_review
-- Writes one action into the audit.
INSERT INTO reviews (actor, action, mode, reason, dead_letter_id, operation_id, step, generation, before, after)
VALUES (:actor, :action, :mode, :reason, CAST(:dead_letter_id AS uuid), CAST(:operation_id AS uuid), :step,
    CAST(:generation AS int), CAST(:before AS json), CAST(:after AS json))
RETURNING id, at;

-- name: lock_ordering_key
-- Locks an ordering key, so that nothing of it starts meanwhile; makes its row again should it have been pruned.
INSERT INTO ordering_keys AS k (tenant, ordering_key, tail) VALUES (:tenant, :ordering_key, 0)
ON CONFLICT (tenant, ordering_key) DO UPDATE SET tail = k.tail
RETURNING ordering_key;

-- name: find_key_holder
-- Another operation that holds an ordering key; a statement of its own, after the lock, to see what was just committed.
SELECT o.id, o.state FROM operations AS o
WHERE o.tenant = :tenant AND o.ordering_key = :ordering_key AND o.id <> CAST(:operation_id AS uuid)
    AND o.state IN ('requested', 'running', 'needs_review') AND (o.admitted_at IS NOT NULL OR o.state <> 'requested')
    AND NOT (o.state = 'needs_review' AND o.type = ANY(CAST(:going_on AS text[])))
ORDER BY o.position
LIMIT 1;
