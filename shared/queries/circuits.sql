-- One circuit breaker a provider, shared by all instances.

-- name: count_provider_failure
-- Counts a call without an answer. Opens the circuit after enough of them in a row, for longer each time a probe fails.
INSERT INTO circuits AS c (provider, failures) VALUES (:provider, 1)
ON CONFLICT (provider) DO UPDATE SET
    failures = c.failures + 1,
    (openings, probing, opened_at, open_until) = (
        SELECT CASE WHEN trips THEN c.openings + 1 ELSE c.openings END,
            c.probing AND NOT trips,
            CASE WHEN trips THEN coalesce(c.opened_at, now()) ELSE c.opened_at END,
            CASE WHEN trips THEN now() + least(CAST(:longest AS float8),
                CAST(:shortest AS float8) * power(2, least(c.openings, 20))) * interval '1 second'
            ELSE c.open_until END
        FROM (SELECT c.probing OR (c.open_until IS NULL AND c.failures + 1 >= CAST(:threshold AS int))) AS t (trips)
    )
RETURNING c.open_until IS NOT NULL AND c.failures >= CAST(:threshold AS int) AS open, c.openings;

-- name: close_circuit
-- Forgets a provider's failures: it has answered. No row: there were none.
UPDATE circuits SET failures = 0, openings = 0, probing = false, opened_at = NULL, open_until = NULL
WHERE provider = :provider AND failures > 0
RETURNING provider;

-- name: take_probe
-- Lets one step through to providers whose pause is over; another may try when that step's lease would have ended.
UPDATE circuits SET probing = true, open_until = now() + make_interval(secs => :lease)
WHERE provider = ANY(CAST(:providers AS text[])) AND open_until <= now()
RETURNING provider;

-- name: lease_probes
-- Leases the oldest outbox row of each step that waits for a provider whose pause is over, to be published as a probe;
-- not one that a pause of its step or tenant keeps from trying. A probe that another step was faster than says nothing
-- about the row's delivery, so it is counted apart.
UPDATE outbox AS x SET
    published = x.published + 1, probes = x.probes + 1, publish_after = now() + interval '1 minute'
FROM (
    SELECT first.operation_id, first.step
    FROM unnest(CAST(:operation_types AS text[]), CAST(:steps AS text[]), CAST(:providers AS text[]))
        AS uses (type, step, provider)
    INNER JOIN circuits AS c ON c.provider = uses.provider AND c.open_until <= now()
    CROSS JOIN LATERAL (
        SELECT x.operation_id, x.step FROM outbox AS x
        INNER JOIN operations AS o ON o.id = x.operation_id
        WHERE x.type = uses.type AND x.step = uses.step AND x.available_at <= now()
            AND NOT EXISTS (
                SELECT FROM holds AS h
                WHERE (h.kind = 'step' AND h.name = x.type || '/' || x.step) OR (h.kind = 'tenant' AND h.name = o.tenant)
            )
        ORDER BY x.available_at
        LIMIT 1
        FOR NO KEY UPDATE OF x SKIP LOCKED
    ) AS first
) AS probes
WHERE x.operation_id = probes.operation_id AND x.step = probes.step
RETURNING x.operation_id, x.type, x.step, x.dispatch, x.traceparent, CAST(NULL AS timestamptz) AS due_at, x.published;

-- name: list_circuits
-- Every circuit with failures, open ones first.
SELECT provider, failures, openings, opened_at, open_until FROM circuits
WHERE failures > 0
ORDER BY opened_at, provider;
