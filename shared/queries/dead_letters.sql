-- What needs a person.

-- name: find_step_owner
-- What owns a step now: its state and its generation, under the row lock that every move of the step takes first.
SELECT state, generation FROM lock_step(CAST(:operation_id AS uuid), :step);

-- name: record_step_dead_letter
-- Records an undelivered message of a step, once a generation; an open row stays open, and says that it came again.
INSERT INTO dead_letters AS dl (operation_id, step, generation, cause, state, closed_at, closed_reason,
    subscription, message_id, delivery_count)
VALUES (CAST(:operation_id AS uuid), :step, :generation, :cause, CAST(:state AS text),
    CASE WHEN CAST(:state AS text) = 'closed' THEN now() END, :closed_reason, :subscription, :message_id,
    CAST(:delivery_count AS int))
ON CONFLICT (operation_id, step, generation) DO UPDATE SET
    occurrences = dl.occurrences + 1, last_seen_at = now(), subscription = excluded.subscription,
    message_id = excluded.message_id, delivery_count = coalesce(excluded.delivery_count, dl.delivery_count)
RETURNING id, state, occurrences;

-- name: record_message
-- Records a message that belongs to no step, once for each content.
INSERT INTO dead_letters AS dl (digest, cause, error_kind, error, raw, subscription, message_id, delivery_count)
VALUES (:digest, :cause, :cause, :error, :raw, :subscription, :message_id, CAST(:delivery_count AS int))
ON CONFLICT (digest) DO UPDATE SET occurrences = dl.occurrences + 1, last_seen_at = now(),
    delivery_count = coalesce(excluded.delivery_count, dl.delivery_count)
RETURNING id, state, occurrences;
