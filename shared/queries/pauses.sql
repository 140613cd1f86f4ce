-- Pauses by a person.

-- name: pause
-- Pauses a step, tenant or provider; no row: it is paused already.
INSERT INTO pauses (kind, name, actor, reason) VALUES (:kind, :name, :actor, :reason)
ON CONFLICT DO NOTHING
RETURNING paused_at;

-- name: resume_pause
-- Ends a pause; no row: there was none. What it held back is due at the relay's next tick.
DELETE FROM pauses WHERE kind = :kind AND name = :name RETURNING paused_at;

-- name: list_pauses
-- Everything that is paused, oldest first.
SELECT kind, name, actor, reason, paused_at FROM pauses ORDER BY paused_at, kind, name;

-- name: make_progress_rows
-- Makes the progress row of each step that has none.
INSERT INTO progress (type, step)
SELECT plan.type, plan.step
FROM unnest(CAST(:operation_types AS text[]), CAST(:steps AS text[])) AS plan (type, step)
ON CONFLICT DO NOTHING;
