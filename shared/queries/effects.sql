-- The effect ledger. Only the holder of the step's lease looks at it or writes it, under the step's row lock taken in
-- the same statement; a confirmation alone is accepted from whoever learns it.

-- name: intend_effect
-- Writes the intention, once; in recovery as if a send of it may have been forgotten. No row: the lease is lost.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
), recovering AS (
    SELECT started_at FROM recovery WHERE ended_at IS NULL
), written AS (
    INSERT INTO effects (operation_id, step, name, provider, state, provider_key, request, essence,
        unaccounted, send_deadline, key_expires_at, unknown_since)
    SELECT held.operation_id, held.step, :name, :provider,
        CASE WHEN recovering.started_at IS NULL THEN 'intended' ELSE 'unknown' END, :provider_key, :request, :essence,
        CASE WHEN recovering.started_at IS NULL THEN 0 ELSE 1 END, recovering.started_at, recovering.started_at,
        recovering.started_at
    FROM held
    LEFT JOIN recovering ON true
    ON CONFLICT (operation_id, step, name, generation) DO NOTHING
    RETURNING name
)
SELECT EXISTS (SELECT FROM written) AS written FROM held;

-- name: read_effect
-- The row of an effect that counts: the generation that is confirmed, should a late answer have confirmed an earlier
-- one, and else the highest.
SELECT name, generation, provider, state, provider_key, request, essence, unaccounted, response::text AS response,
    reference, reason, permits, key_spent, max(generation) OVER () AS newest
FROM effects
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND name = :name
ORDER BY state = 'confirmed' DESC, generation DESC
LIMIT 1;

-- name: fill_approved_effect
-- Gives a generation that a review approved its request; in recovery as if a send of it may have been forgotten, for
-- the same key may have been approved before the restore. No row: the lease is lost or somebody was faster.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
), recovering AS (
    SELECT started_at FROM recovery WHERE ended_at IS NULL
)
UPDATE effects AS e SET
    state = CASE WHEN recovering.started_at IS NULL THEN 'intended' ELSE 'unknown' END, request = :request,
    essence = :essence, provider = :provider,
    unaccounted = CASE WHEN recovering.started_at IS NULL THEN 0 ELSE 1 END, send_deadline = recovering.started_at,
    key_expires_at = recovering.started_at, unknown_since = recovering.started_at, version = e.version + 1
FROM held
LEFT JOIN recovering ON true
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state = 'approved'
RETURNING e.name;

-- name: permit_send
-- Permits one send, immediately before it: reads fence, lease, ledger and key expiry again, and extends the lease. None
-- when an earlier generation turns out to have happened, or under a key that is spent.
WITH held AS (
    UPDATE steps AS s SET
        lease_expires_at = greatest(s.lease_expires_at, now() + make_interval(secs => CAST(:timeout AS float8) + CAST(:margin AS float8)))
    WHERE s.operation_id = CAST(:operation_id AS uuid) AND s.step = :step AND s.fence = :fence
        AND s.state = 'running' AND s.lease_expires_at > now()
    RETURNING s.operation_id, s.step
), permitted AS (
    UPDATE effects AS e SET
        permits = e.permits + 1,
        unaccounted = e.unaccounted + 1,
        state = CASE WHEN e.state = 'not_sent' THEN 'intended' ELSE e.state END,
        send_deadline = greatest(e.send_deadline, now() + make_interval(secs => CAST(:timeout AS float8))),
        key_expires_at = CASE WHEN e.unaccounted = 0 THEN now() + make_interval(secs => :horizon)
            ELSE e.key_expires_at END,
        version = e.version + 1
    FROM held
    WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
        AND e.generation = CAST(:generation AS int) AND e.state IN ('intended', 'unknown', 'not_sent')
        AND NOT e.key_spent
        AND NOT EXISTS (
            SELECT FROM effects AS other
            WHERE other.operation_id = e.operation_id AND other.step = e.step AND other.name = e.name
                AND other.state = 'confirmed'
        )
        AND (e.unaccounted = 0
            OR (CAST(:idempotent AS boolean)
                AND now() + make_interval(secs => CAST(:timeout AS float8) + CAST(:margin AS float8)) < e.key_expires_at))
    RETURNING e.permits
)
SELECT permitted.permits FROM held LEFT JOIN permitted ON true;

-- name: confirm_effect
-- Records that the effect happened, from whoever learns it; a confirmation is never taken back or replaced. The provider
-- answers, so its circuit closes.
WITH closed AS (
    UPDATE circuits SET failures = 0, openings = 0, probing = false, opened_at = NULL, open_until = NULL
    WHERE provider = CAST(:provider AS text) AND failures > 0
)
UPDATE effects SET
    state = 'confirmed', unaccounted = 0, response = CAST(:response AS json), reference = :reference,
    evidence = :evidence, reason = NULL, unknown_since = NULL, confirmed_at = now(), version = version + 1
WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND name = :name
    AND generation = CAST(:generation AS int) AND state IN ('intended', 'unknown', 'not_sent', 'rejected')
RETURNING version;

-- name: withdraw_effect
-- Gives up the generations after one that were intended and never sent.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
)
UPDATE effects AS e SET
    state = 'not_sent', reason = :reason, version = e.version + 1
FROM held
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation > CAST(:after AS int) AND e.state = 'intended' AND e.unaccounted = 0
RETURNING e.generation;

-- name: account_for_send
-- Records a definite no or proof that nothing ran, for this send; with others unaccounted for the effect is unknown.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
)
UPDATE effects AS e SET
    unaccounted = e.unaccounted - 1,
    state = CASE WHEN e.unaccounted > 1 THEN 'unknown' ELSE CAST(:outcome AS text) END,
    unknown_since = CASE WHEN e.unaccounted > 1 THEN coalesce(e.unknown_since, now()) END,
    reason = :reason, evidence = 'answer', version = e.version + 1
FROM held
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state IN ('intended', 'unknown') AND e.unaccounted > 0
RETURNING e.state;

-- name: mark_unknown
-- Records that the answer to a send is missing or ambiguous, and that its key is spent when it is final.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
)
UPDATE effects AS e SET
    state = 'unknown', unknown_since = coalesce(e.unknown_since, now()), reason = :reason,
    key_spent = e.key_spent OR CAST(:final AS boolean), version = e.version + 1
FROM held
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state IN ('intended', 'unknown') AND e.unaccounted > 0
RETURNING e.state;

-- name: begin_lookup
-- Counts a lookup and says, before it is made, whether absence would be proof: the last send's deadline and the
-- provider's visibility have passed. Seconds until then otherwise; null: this provider can give no such proof.
-- The effect of a process that died is only intended until now: whoever must ask does not know.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
)
UPDATE effects AS e SET
    lookups = e.lookups + 1, state = 'unknown', unknown_since = coalesce(e.unknown_since, least(now(), e.send_deadline)),
    version = e.version + CASE WHEN e.state = 'unknown' THEN 0 ELSE 1 END
FROM held
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state IN ('intended', 'unknown')
RETURNING e.permits,
    extract(epoch FROM e.send_deadline + make_interval(secs => CAST(:visibility AS float8)) - now())::float8 AS too_early;

-- name: prove_absent
-- Records proof that no send so far had an effect: a new one may be permitted, and the key's expiry starts anew.
WITH held AS (
    SELECT operation_id, step FROM steps
    WHERE operation_id = CAST(:operation_id AS uuid) AND step = :step AND fence = :fence AND state = 'running'
    FOR NO KEY UPDATE
)
UPDATE effects AS e SET
    state = 'not_sent', unaccounted = 0, unknown_since = NULL, key_expires_at = NULL, evidence = 'lookup',
    version = e.version + 1
FROM held
WHERE e.operation_id = held.operation_id AND e.step = held.step AND e.name = :name
    AND e.generation = CAST(:generation AS int) AND e.state IN ('intended', 'unknown')
    AND e.permits = CAST(:permits AS int)
RETURNING e.state;

-- name: queue_lookups
-- Queues unresolved steps with an open or by now confirmed effect to look it up again, bounded and with backoff.
WITH due AS (
    SELECT s.operation_id, s.step, o.type, o.traceparent, policy.attempts
    FROM steps AS s
    INNER JOIN operations AS o ON o.id = s.operation_id
    INNER JOIN unnest(CAST(:operation_types AS text[]), CAST(:steps AS text[]), CAST(:attempts AS int[]))
        AS policy (type, step, attempts) ON policy.type = o.type AND policy.step = s.step
    WHERE s.state = 'unresolved' AND s.lookups < CAST(:most AS int)
        AND s.finished_at + least(CAST(:longest AS float8), CAST(:shortest AS float8) * power(2, s.lookups))
            * interval '1 second' <= now()
        AND EXISTS (
            SELECT FROM effects AS e
            WHERE e.operation_id = s.operation_id AND e.step = s.step
                AND (e.state IN ('intended', 'unknown') OR (e.state = 'confirmed' AND e.confirmed_at > s.finished_at))
        )
    ORDER BY s.finished_at
    LIMIT CAST(:batch AS int)
    FOR NO KEY UPDATE OF s SKIP LOCKED
), queued AS (
    UPDATE steps AS s SET
        state = 'queued', dispatch = s.dispatch + 1, lookups = s.lookups + 1, available_at = now(),
        finished_at = NULL, failures = least(s.failures, due.attempts - 1)
    FROM due
    WHERE s.operation_id = due.operation_id AND s.step = due.step AND s.state = 'unresolved'
    RETURNING s.operation_id, s.step, s.dispatch, due.type, due.traceparent
), sent AS (
    INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    SELECT operation_id, step, type, dispatch, now(), outbox_turn(now(), :writer_lease),
        writer_hands_over(now(), :writer_lease), traceparent
    FROM queued
)
SELECT operation_id, type, step, dispatch, traceparent FROM queued;

-- name: effects_pulse
-- How many effects are unknown and how old the oldest is (seconds); a discarded step's wait for nobody any more.
SELECT count(*) AS unknown,
    coalesce(extract(epoch FROM now() - min(unknown_since)), 0)::float8 AS oldest_unknown_age
FROM effects AS e
WHERE e.state = 'unknown' AND NOT EXISTS (
    SELECT FROM steps AS s WHERE s.operation_id = e.operation_id AND s.step = e.step AND s.state = 'discarded'
);

-- name: begin_recovery
-- Declares that the database was restored: every effect that is not settled must be looked up before another send; of
-- its generations the one that counts.
WITH begun AS (
    INSERT INTO recovery DEFAULT VALUES RETURNING started_at
)
UPDATE effects AS e SET
    state = 'unknown', unaccounted = greatest(e.unaccounted, 1), unknown_since = coalesce(e.unknown_since, now()),
    send_deadline = greatest(e.send_deadline, begun.started_at), key_expires_at = begun.started_at,
    version = e.version + 1
FROM begun
WHERE e.state IN ('intended', 'unknown', 'not_sent')
    AND NOT EXISTS (
        SELECT FROM effects AS other
        WHERE other.operation_id = e.operation_id AND other.step = e.step AND other.name = e.name
            AND (other.generation > e.generation OR other.state = 'confirmed')
    )
RETURNING e.name;

-- name: end_recovery
-- Declares recovery over; no row when there was none.
UPDATE recovery SET ended_at = now() WHERE ended_at IS NULL RETURNING started_at;
