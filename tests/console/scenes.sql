-- A pipeline that has been at work: :count operations, of which :bad need a person, spread over :hours hours.

-- name: fill_operations
-- One in five is an invoice, the others are reports; the newest few are under way.
INSERT INTO operations (id, tenant, type, key, input, state, steps_left, steps_alive, steps_in_review, accepted_at,
    admitted_at, finished_at)
SELECT uuidv7(at - now()), CASE WHEN n % 7 = 0 THEN 'branch' ELSE 'shop' END,
    CASE WHEN n % 5 = 0 THEN 'invoice.generate' ELSE 'report.generate' END,
    CASE WHEN n % 5 = 0 THEN 'order-' ELSE 'report-' END || 536365 + n,
    CASE WHEN n % 5 = 0
        THEN json_build_object('order_id', (536365 + n)::text, 'customer', json_build_object('name', 'Canary Hidden'))
        ELSE json_build_object('account', 'account-' || n % 90, 'period', '2011-11') END,
    s.state, CASE WHEN s.state = 'succeeded' THEN 0 ELSE 2 END, (s.state = 'running')::int,
    (s.state = 'needs_review')::int, at, at,
    CASE WHEN s.state = 'succeeded' THEN at + make_interval(secs => 0.4 + 2 * pow(random(), 4)) END
FROM generate_series(1, CAST(:count AS int)) AS n,
    LATERAL (SELECT now() - make_interval(secs => (CAST(:count AS int) - n) * 3600.0 * :hours / :count) AS at) AS t,
    LATERAL (SELECT CASE
        WHEN n > CAST(:count AS int) - 6 THEN 'running'
        WHEN n % ((CAST(:count AS int) / CAST(:bad AS int) - 1) | 1) = 3 THEN 'needs_review'
        ELSE 'succeeded' END AS state) AS s;

-- name: fill_identities
-- The identity of each.
INSERT INTO identities (tenant, type, key, operation_id, fingerprint, fingerprint_version, accepted_at)
SELECT tenant, type, key, id, sha256(''), 1, accepted_at FROM operations ON CONFLICT DO NOTHING;

-- name: fill_steps
-- The steps of each: of an invoice the second is what is under way or went wrong, of a report the first.
INSERT INTO steps (operation_id, step, state, needs, needs_left, attempt, failures, dispatch, fence, available_at,
    attempt_started_at, lease_expires_at, finished_at, result, error_kind, error)
SELECT o.id, p.step, s.state, p.needs, CASE WHEN s.state = 'waiting' THEN cardinality(p.needs) ELSE 0 END,
    CASE s.state WHEN 'waiting' THEN 0 WHEN 'exhausted' THEN 5 ELSE 1 END, CASE s.state WHEN 'exhausted' THEN 5 ELSE 0 END,
    1, CASE s.state WHEN 'waiting' THEN 0 ELSE 5 END, o.accepted_at + make_interval(secs => 0.35 * (p.place - 1)),
    CASE WHEN s.state <> 'waiting' THEN o.accepted_at + make_interval(secs => 0.35 * (p.place - 1)) END, CASE WHEN s.state = 'running' THEN now() + interval '1 hour' END,
    CASE WHEN s.state IN ('succeeded', 'exhausted', 'unresolved')
        THEN o.accepted_at + make_interval(secs => 0.35 * p.place + CASE s.state WHEN 'exhausted' THEN 48 ELSE 0 END) END,
    CASE WHEN s.state = 'succeeded' THEN json_build_object('number', 'INV-2011-' || o.key) END,
    CASE s.state WHEN 'exhausted' THEN 'ConnectionError' WHEN 'unresolved' THEN 'effect_unknown' END,
    CASE s.state WHEN 'exhausted' THEN 'the mail server refused the connection five times'
        WHEN 'unresolved' THEN 'the provider did not answer within 10 s; whether the payment was made is not known' END
FROM operations AS o
INNER JOIN (VALUES ('invoice.generate', 1, 'record', '{}'::text[]), ('invoice.generate', 2, 'collect', '{record}'),
    ('invoice.generate', 3, 'render', '{collect}'), ('invoice.generate', 4, 'notify', '{render}'),
    ('invoice.generate', 5, 'announce', '{record,notify}'), ('report.generate', 2, 'generate', '{}'),
    ('report.generate', 3, 'notify', '{generate}')) AS p (type, place, step, needs) ON p.type = o.type
CROSS JOIN LATERAL (SELECT CASE
    WHEN o.state = 'succeeded' OR p.place = 1 THEN 'succeeded'
    WHEN p.place > 2 THEN 'waiting'
    WHEN o.state = 'running' THEN 'running'
    WHEN o.type = 'invoice.generate' THEN 'unresolved' ELSE 'exhausted' END AS state) AS s;

-- name: fill_attempts
-- One attempt a step, of an exhausted one five.
INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, error_kind, error, started_at,
    ended_at)
SELECT s.operation_id, s.step, n, 1, n, n,
    CASE WHEN s.state = 'succeeded' THEN 'succeeded' WHEN n < s.attempt THEN 'retry' ELSE s.state END,
    s.error_kind, s.error, s.available_at + make_interval(secs => 12 * (n - 1)),
    s.available_at + make_interval(secs => 12 * (n - 1) + 0.2 + random() / 7)
FROM steps AS s CROSS JOIN LATERAL generate_series(1, s.attempt) AS n
WHERE s.state <> 'running';

-- name: fill_effects
-- One effect a step that has outside ones; a step that is unresolved does not know of its payment.
INSERT INTO effects (operation_id, step, name, provider, state, provider_key, request, permits, unaccounted, lookups,
    reference, reason, evidence, intended_at, unknown_since, confirmed_at)
SELECT s.operation_id, s.step, CASE s.step WHEN 'collect' THEN 'payment' ELSE 'document' END,
    CASE s.step WHEN 'collect' THEN 'payments' ELSE 'storage' END, e.state,
    'ep_' || md5(s.operation_id || s.step), '\x7b7d', 1, (e.state = 'unknown')::int, CASE e.state WHEN 'unknown' THEN 3 ELSE 0 END,
    CASE e.state WHEN 'confirmed' THEN 'pi_' || left(md5(s.operation_id::text), 20) END,
    CASE e.state WHEN 'unknown' THEN 'no answer within 10 s' END, CASE e.state WHEN 'confirmed' THEN 'answer' END,
    s.available_at + interval '50 ms', CASE e.state WHEN 'unknown' THEN s.finished_at END,
    CASE e.state WHEN 'confirmed' THEN s.finished_at - interval '20 ms' END
FROM steps AS s, LATERAL (SELECT CASE s.state WHEN 'succeeded' THEN 'confirmed' ELSE 'unknown' END AS state) AS e
WHERE s.step IN ('collect', 'render', 'generate') AND s.state IN ('succeeded', 'unresolved');

-- name: fill_dead_letters
-- A letter for each step that needs a person, and three closed ones for each open.
INSERT INTO dead_letters (id, operation_id, step, generation, cause, error_kind, error, opened_at, last_seen_at)
SELECT uuidv7(s.finished_at - now()), s.operation_id, s.step, 1, s.state, s.error_kind, s.error, s.finished_at, s.finished_at
FROM steps AS s WHERE s.state IN ('exhausted', 'unresolved');

-- name: fill_closed_letters
-- Closed letters of earlier generations.
INSERT INTO dead_letters (id, operation_id, step, generation, cause, state, error_kind, opened_at, last_seen_at,
    closed_at, closed_reason)
SELECT uuidv7(s.finished_at - now()), s.operation_id, s.step, 1, 'exhausted', 'closed', 'TimeoutError', s.finished_at,
    s.finished_at, now(), 'step succeeded'
FROM steps AS s WHERE s.state = 'succeeded' AND s.step IN ('collect', 'generate')
ORDER BY s.operation_id DESC LIMIT CAST(:bad AS int) * 3;

-- name: fill_malformed
-- Messages that nobody could read.
INSERT INTO dead_letters (digest, cause, error_kind, error, raw, subscription, message_id, delivery_count, occurrences)
SELECT sha256(n::text::bytea), 'malformed', 'MalformedMessageError', 'the data is not base64',
    '{"message": {"data": "%%%", "messageId": "' || n || '"}}', 'projects/p/subscriptions/invoice-record', n::text, 5, 3
FROM generate_series(1, 2) AS n;

-- name: hold_some
-- What is paused.
INSERT INTO pauses (kind, name, actor, reason) VALUES
    ('step', 'report.generate/notify', 'ada@example.com', 'the mail server is being moved');

-- name: open_circuit
-- A provider that does not answer.
INSERT INTO circuits (provider, failures, openings, opened_at, open_until)
VALUES ('payments', 14, 1, now() - interval '2 minutes', now() + interval '40 seconds');

-- name: queue_some
-- A backlog.
INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after)
SELECT s.operation_id, s.step, o.type, 1, now() - make_interval(secs => 20 * random()), now()
FROM steps AS s INNER JOIN operations AS o ON o.id = s.operation_id
WHERE s.state = 'waiting' AND o.state = 'running';

-- name: story_steps
-- One invoice whose payment was exhausted, reviewed two hours later and replayed: what a picture has to show.
UPDATE steps SET attempt = 6, dispatch = 6, fence = 6, generation = 2, result = '{"paid_pence": 1530}',
    finished_at = available_at + interval '2 hours 2.2 seconds'
WHERE operation_id = (SELECT id FROM operations WHERE type = 'invoice.generate' AND state = 'succeeded' ORDER BY id LIMIT 1)
    AND step = 'collect';

-- name: story_later
-- What needs the payment came after it.
UPDATE steps AS s SET available_at = c.finished_at + (s.available_at - c.available_at) - interval '300 ms',
    finished_at = c.finished_at + (s.finished_at - c.available_at) - interval '300 ms'
FROM steps AS c
WHERE c.step = 'collect' AND c.generation = 2 AND s.operation_id = c.operation_id AND s.step IN ('render', 'notify', 'announce');

-- name: story_attempts
-- Five attempts that failed, one that did not, and those of the later steps.
INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, error_kind, error, started_at,
    ended_at)
SELECT s.operation_id, s.step, n, 1, n, n, CASE WHEN n < 5 THEN 'retry' ELSE 'exhausted' END, 'ConnectionError',
    'the provider refused the connection', s.available_at + make_interval(secs => pow(2, n) - 2),
    s.available_at + make_interval(secs => pow(2, n) - 1.4)
FROM steps AS s, generate_series(1, 5) AS n WHERE s.step = 'collect' AND s.generation = 2
ON CONFLICT (operation_id, step, attempt) DO UPDATE SET outcome = excluded.outcome, error_kind = excluded.error_kind,
    error = excluded.error, started_at = excluded.started_at, ended_at = excluded.ended_at;

-- name: story_last_attempt
-- The replayed attempt.
INSERT INTO attempts (operation_id, step, attempt, generation, dispatch, fence, outcome, started_at, ended_at)
SELECT operation_id, step, 6, 2, 6, 6, 'succeeded', finished_at - interval '1.2 seconds', finished_at
FROM steps WHERE step = 'collect' AND generation = 2;

-- name: story_later_attempts
-- Those of the later steps.
UPDATE attempts AS a SET started_at = s.available_at, ended_at = s.finished_at
FROM steps AS s INNER JOIN steps AS c ON c.operation_id = s.operation_id AND c.step = 'collect' AND c.generation = 2
WHERE a.operation_id = s.operation_id AND a.step = s.step AND s.step IN ('render', 'notify', 'announce');

-- name: story_effects
-- The payment was made by the last attempt, the document after it.
UPDATE effects AS e SET intended_at = s.finished_at - interval '1 second', confirmed_at = s.finished_at - interval '100 ms'
FROM steps AS s INNER JOIN steps AS c ON c.operation_id = s.operation_id AND c.step = 'collect' AND c.generation = 2
WHERE e.operation_id = s.operation_id AND e.step = s.step;

-- name: story_letter
-- Its letter, closed by the replay.
INSERT INTO dead_letters (operation_id, step, generation, cause, state, error_kind, error, opened_at, last_seen_at,
    closed_at, closed_reason)
SELECT operation_id, step, 3, 'exhausted', 'closed', 'ConnectionError', 'the provider refused the connection',
    available_at + interval '30.6 seconds', available_at + interval '30.6 seconds', available_at + interval '2 hours',
    'resumed by ada@example.com: the provider is back'
FROM steps WHERE step = 'collect' AND generation = 2;

-- name: story_reviews
-- What two people did about it.
INSERT INTO reviews (at, actor, action, mode, reason, operation_id, step, generation, before, after)
SELECT s.available_at + r.after_ms * interval '1 ms', r.actor, r.action, r.mode, r.reason, s.operation_id, s.step, 1, '{}', '{}'
FROM steps AS s, (VALUES (5400000, 'eve@example.com', 'note', NULL, 'The provider''s status page says it is back at 14:00.'),
    (7200000, 'ada@example.com', 'replay', 'resume', 'The provider is back.')) AS r (after_ms, actor, action, mode, reason)
WHERE s.step = 'collect' AND s.generation = 2;

-- name: story_operation
-- The operation took as long.
UPDATE operations AS o SET finished_at = s.finished_at
FROM steps AS s INNER JOIN steps AS c ON c.operation_id = s.operation_id AND c.step = 'collect' AND c.generation = 2
WHERE o.id = s.operation_id AND s.step = 'announce';
