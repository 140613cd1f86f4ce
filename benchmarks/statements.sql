-- Statements of the benchmarks only. Those with %s are the usual way's, sent through the DB-API.

-- name: clear
-- Empties every table that a sample writes to.
TRUNCATE identities, operations, usual.operations CASCADE;

-- name: vacuum
-- Brings statistics and hint bits up to date.
VACUUM (ANALYZE) identities, operations, steps, outbox, usual.operations, usual.steps, usual.outbox;

-- name: prepare_operations
-- Operations as accept_operation leaves them, accepted one after another, with ids that can be counted up.
WITH numbered AS (
    SELECT n, CAST(:prefix || CAST(CAST(:first AS bigint) + n AS text) AS uuid) AS id
    FROM generate_series(0, CAST(:count AS int) - 1) AS n
), identity AS (
    INSERT INTO identities (tenant, type, key, operation_id, fingerprint, fingerprint_version)
    SELECT :tenant, :type, 'prepared-' || n, id, sha256(uuid_send(id)), 1 FROM numbered
), operation AS (
    INSERT INTO operations (id, tenant, type, key, input, traceparent, steps_left, steps_alive)
    SELECT id, :tenant, :type, 'prepared-' || n, CAST(:input AS json), :traceparent, 3, 1 FROM numbered
), planned AS (
    INSERT INTO steps (operation_id, step, needs, needs_left, state, dispatch, available_at)
    SELECT id, plan.step, string_to_array(plan.needs, ','), plan.needs_left,
        CASE WHEN plan.needs_left = 0 THEN 'queued' ELSE 'waiting' END, 1 - plan.needs_left,
        CASE WHEN plan.needs_left = 0 THEN now() END
    FROM numbered
    CROSS JOIN (VALUES ('record', '', 0), ('render', 'record', 1), ('notify', 'render', 1))
        AS plan (step, needs, needs_left)
)
INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, traceparent)
SELECT id, 'record', :type, 1, due.at, due.at, :traceparent
FROM numbered
CROSS JOIN LATERAL (SELECT now() + (n - CAST(:count AS int)) * interval '1 microsecond' AS at) AS due;

-- name: prepare_usual
-- The same for the usual way.
WITH numbered AS (
    SELECT n, CAST(:prefix || CAST(CAST(:first AS bigint) + n AS text) AS uuid) AS id
    FROM generate_series(0, CAST(:count AS int) - 1) AS n
), operation AS (
    INSERT INTO usual.operations (id, tenant, type, key, input)
    SELECT id, :tenant, :type, 'prepared-' || n || coalesce(left(:traceparent, 0), ''), CAST(:input AS json)
    FROM numbered
), planned AS (
    INSERT INTO usual.steps (operation_id, step, state)
    SELECT id, plan.step, plan.state
    FROM numbered
    CROSS JOIN (VALUES ('record', 'queued'), ('render', 'waiting'), ('notify', 'waiting')) AS plan (step, state)
)
INSERT INTO usual.outbox (operation_id, step)
SELECT id, 'record' FROM numbered;

-- name: count_accepted
-- Operations that have all of their rows.
SELECT count(*) FROM operations AS o
INNER JOIN identities AS i ON i.operation_id = o.id
INNER JOIN outbox AS x ON x.operation_id = o.id
WHERE o.steps_left = 3;

-- name: count_settled
-- Operations whose first step has succeeded and whose second is due.
SELECT count(*) FROM steps AS s
INNER JOIN outbox AS x ON x.operation_id = s.operation_id AND x.step = 'render'
WHERE s.step = 'record' AND s.state = 'succeeded';

-- name: count_published
-- Rows that were handed over.
SELECT count(*) FROM outbox WHERE published = 1;

-- name: usual_accept_operation
-- The operation's row, unless its key is known.
INSERT INTO usual.operations (id, tenant, type, key, input) VALUES (%s, %s, %s, %s, %s)
ON CONFLICT (tenant, type, key) DO NOTHING RETURNING id;

-- name: usual_accept_outbox
-- The outbox row.
INSERT INTO usual.outbox (operation_id, step) VALUES (%s, %s);

-- name: usual_claim_read
-- Looks at the step and locks it.
SELECT state, attempts FROM usual.steps WHERE operation_id = %s AND step = %s FOR UPDATE;

-- name: usual_claim_write
-- Takes the step.
UPDATE usual.steps SET state = 'running', attempts = attempts + 1, locked_until = now() + interval '60 seconds'
WHERE operation_id = %s AND step = %s;

-- name: usual_settle_step
-- Completes the step.
UPDATE usual.steps SET state = 'succeeded', result = %s, locked_until = NULL WHERE operation_id = %s AND step = %s;

-- name: usual_settle_next
-- Queues the next one.
UPDATE usual.steps SET state = 'queued' WHERE operation_id = %s AND step = %s;

-- name: usual_settle_operation
-- Moves the operation on.
UPDATE usual.operations SET state = 'running' WHERE id = %s;

-- name: usual_relay_read
-- The oldest rows that nobody else is publishing.
SELECT id, operation_id, step FROM usual.outbox WHERE published_at IS NULL
ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED;

-- name: usual_relay_mark
-- Marks what was published.
UPDATE usual.outbox SET published_at = now() WHERE id = ANY(%s);

-- name: usual_relay_mark_one
-- Marks one row.
UPDATE usual.outbox SET published_at = now() WHERE id = %s;

-- name: usual_count_settled
-- Operations whose first step has succeeded and whose second has an outbox row.
SELECT count(*) FROM usual.steps AS s
INNER JOIN usual.outbox AS x ON x.operation_id = s.operation_id AND x.step = 'render'
WHERE s.step = 'record' AND s.state = 'succeeded';

-- name: usual_count_accepted
-- Operations with their outbox row.
SELECT count(*) FROM usual.operations AS o INNER JOIN usual.outbox AS x ON x.operation_id = o.id;

-- name: usual_count_published
-- Rows that were marked.
SELECT count(*) FROM usual.outbox WHERE published_at IS NOT NULL;
