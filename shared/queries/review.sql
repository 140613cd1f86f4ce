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
