-- The pipeline's pulse, for people: what waits, what runs, how it went lately. Each reads an index or a small table.

-- name: backlog_by_step
-- For each step what is due and unclaimed, the age of the oldest (seconds), what is due later, and what runs.
WITH due AS (
    SELECT x.type, x.step, count(*) FILTER (WHERE x.available_at <= now()) AS due,
        count(*) FILTER (WHERE x.available_at > now()) AS later,
        coalesce(extract(epoch FROM now() - min(x.available_at) FILTER (WHERE x.available_at <= now())), 0)::float8
            AS oldest_age
    FROM outbox AS x
    GROUP BY x.type, x.step
), running AS (
    SELECT o.type, s.step, count(*) AS running
    FROM steps AS s
    INNER JOIN operations AS o ON o.id = s.operation_id
    WHERE s.lease_expires_at IS NOT NULL
    GROUP BY o.type, s.step
)
SELECT coalesce(due.type, running.type) AS type, coalesce(due.step, running.step) AS step,
    coalesce(due.due, 0) AS due, coalesce(due.oldest_age, 0)::float8 AS oldest_age, coalesce(due.later, 0) AS later,
    coalesce(running.running, 0) AS running
FROM due
FULL JOIN running ON running.type = due.type AND running.step = due.step
ORDER BY 1, 2;

-- name: attempts_by_minute
-- How many attempts ended in each of the last minutes, by outcome.
SELECT date_bin(interval '1 minute', a.ended_at, timestamptz '2000-01-01 00:00+00') AS minute, a.outcome,
    count(*) AS attempts
FROM attempts AS a
WHERE a.ended_at > now() - make_interval(mins => CAST(:minutes AS int))
GROUP BY 1, 2
ORDER BY 1, 2;

-- name: latency_lately
-- How long the operations that finished in the last minutes took, from when they were due (seconds).
SELECT count(*) AS finished,
    coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY l.seconds), 0)::float8 AS p50,
    coalesce(percentile_cont(0.95) WITHIN GROUP (ORDER BY l.seconds), 0)::float8 AS p95,
    coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY l.seconds), 0)::float8 AS p99
FROM (
    SELECT extract(epoch FROM o.finished_at - o.starts_at) AS seconds
    FROM operations AS o
    WHERE o.finished_at > now() - make_interval(mins => CAST(:minutes AS int)) AND o.state = 'succeeded'
) AS l;

-- name: count_unfinished
-- Operations that wait for admission, are in flight, or need a review.
SELECT
    (SELECT count(*) FROM operations WHERE admitted_at IS NULL AND state = 'requested') AS waiting,
    (SELECT count(*) FROM operations WHERE admitted_at IS NOT NULL AND state IN ('requested', 'running')) AS in_flight,
    (SELECT count(*) FROM operations WHERE state = 'needs_review') AS needs_review,
    now() AS taken_at;
