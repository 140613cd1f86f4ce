-- Operations, their steps, the outbox and the review queue.
-- Every guarantee that SQL can keep is kept here: states are tied to their timestamps by CHECKs, edges of the
-- state machine by a trigger, an operation's state follows from its steps in one place.

CREATE TABLE identities (
    tenant text NOT NULL,
    type text NOT NULL,
    key text NOT NULL,
    operation_id uuid NOT NULL UNIQUE,
    fingerprint bytea NOT NULL CHECK (octet_length(fingerprint) = 32),
    fingerprint_version smallint NOT NULL,
    accepted_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (tenant, type, key),
    CHECK (length(key) BETWEEN 1 AND 255)
);
COMMENT ON TABLE identities IS 'Who is who: one row for each accepted identity, kept longer than any message, replay window or operation record.';
COMMENT ON COLUMN identities.tenant IS 'The tenant that the caller acted for.';
COMMENT ON COLUMN identities.type IS 'Operation type, a key of pipeline.yaml.';
COMMENT ON COLUMN identities.key IS 'The caller''s Idempotency-Key.';
COMMENT ON COLUMN identities.operation_id IS 'The UUIDv7 given at acceptance.';
COMMENT ON COLUMN identities.fingerprint IS 'SHA-256 over the canonical type, input and options.';
COMMENT ON COLUMN identities.fingerprint_version IS 'The version of the rule that made the fingerprint; later requests are compared under it.';
COMMENT ON COLUMN identities.accepted_at IS 'When the operation was accepted.';

CREATE TABLE operations (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    type text NOT NULL,
    key text NOT NULL,
    input json NOT NULL,
    not_before timestamptz,
    deadline timestamptz,
    ordering_key text,
    traceparent text,
    state text NOT NULL DEFAULT 'requested'
        CHECK (state IN ('requested', 'running', 'succeeded', 'failed', 'cancelled', 'needs_review')),
    steps_left integer NOT NULL CHECK (steps_left >= 0),
    steps_alive integer NOT NULL CHECK (steps_alive >= 0),
    steps_in_review integer NOT NULL DEFAULT 0 CHECK (steps_in_review >= 0),
    steps_failed integer NOT NULL DEFAULT 0 CHECK (steps_failed >= 0),
    steps_cancelled integer NOT NULL DEFAULT 0 CHECK (steps_cancelled >= 0),
    accepted_at timestamptz NOT NULL DEFAULT now(),
    cancel_requested_at timestamptz,
    finished_at timestamptz,
    CHECK ((state IN ('succeeded', 'failed', 'cancelled')) = (finished_at IS NOT NULL)),
    CHECK (state <> 'succeeded' OR steps_left = 0),
    CHECK (state <> 'needs_review' OR steps_in_review > 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE operations IS 'One business operation; its state follows from its steps (see steps_moved()).';
COMMENT ON COLUMN operations.id IS 'UUIDv7; carried in every message, log line, lease and effect key.';
COMMENT ON COLUMN operations.tenant IS 'The tenant that the caller acted for.';
COMMENT ON COLUMN operations.type IS 'Operation type, a key of pipeline.yaml.';
COMMENT ON COLUMN operations.key IS 'The caller''s Idempotency-Key.';
COMMENT ON COLUMN operations.input IS 'Canonical JSON (RFC 8785) as accepted; json, not jsonb, so that no number is rewritten.';
COMMENT ON COLUMN operations.not_before IS 'No step starts before this time.';
COMMENT ON COLUMN operations.deadline IS 'No attempt starts after this time.';
COMMENT ON COLUMN operations.ordering_key IS 'Operations of a tenant with the same key run one after another.';
COMMENT ON COLUMN operations.traceparent IS 'W3C trace context of the accepting request.';
COMMENT ON COLUMN operations.state IS 'requested, running, succeeded, failed, cancelled or needs_review.';
COMMENT ON COLUMN operations.steps_left IS 'Steps that have not succeeded.';
COMMENT ON COLUMN operations.steps_alive IS 'Steps that are queued or running.';
COMMENT ON COLUMN operations.steps_in_review IS 'Steps that are unresolved or exhausted.';
COMMENT ON COLUMN operations.steps_failed IS 'Steps that have failed or were discarded.';
COMMENT ON COLUMN operations.steps_cancelled IS 'Steps that were cancelled.';
COMMENT ON COLUMN operations.accepted_at IS 'When the operation was accepted.';
COMMENT ON COLUMN operations.cancel_requested_at IS 'When a cancel was asked for.';
COMMENT ON COLUMN operations.finished_at IS 'When the state became final.';
CREATE INDEX operations_by_tenant ON operations (tenant, id);
CREATE INDEX operations_unfinished ON operations (tenant, state, id) WHERE state NOT IN ('succeeded', 'cancelled');

CREATE TABLE steps (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    step text NOT NULL,
    state text NOT NULL CHECK (state IN ('waiting', 'queued', 'running', 'succeeded', 'failed',
        'unresolved', 'exhausted', 'cancelled', 'discarded')),
    needs text[] NOT NULL DEFAULT '{}',
    needs_left integer NOT NULL CHECK (needs_left >= 0),
    attempt integer NOT NULL DEFAULT 0 CHECK (attempt >= 0),
    failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    waits integer NOT NULL DEFAULT 0 CHECK (waits >= 0),
    dispatch integer NOT NULL DEFAULT 0 CHECK (dispatch >= 0),
    fence bigint NOT NULL DEFAULT 0 CHECK (fence >= 0),
    generation integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    available_at timestamptz,
    attempt_started_at timestamptz,
    lease_expires_at timestamptz,
    cancel_requested_at timestamptz,
    finished_at timestamptz,
    result json,
    error_kind text,
    error text,
    PRIMARY KEY (operation_id, step),
    CHECK ((state = 'running') = (lease_expires_at IS NOT NULL)),
    CHECK (state <> 'running' OR (attempt_started_at IS NOT NULL AND attempt >= 1 AND fence >= 1)),
    CHECK (state <> 'queued' OR (available_at IS NOT NULL AND needs_left = 0 AND dispatch >= 1)),
    CHECK ((state IN ('waiting', 'queued', 'running')) = (finished_at IS NULL)),
    CHECK (state = 'succeeded' OR result IS NULL),
    CHECK (state NOT IN ('failed', 'unresolved', 'exhausted') OR error_kind IS NOT NULL)
) WITH (fillfactor = 50);
COMMENT ON TABLE steps IS 'One step of one operation: what may start it, who holds it, and how it ended.';
COMMENT ON COLUMN steps.operation_id IS 'The operation.';
COMMENT ON COLUMN steps.step IS 'Name of the step in pipeline.yaml.';
COMMENT ON COLUMN steps.state IS 'See shared/transitions.py for every edge.';
COMMENT ON COLUMN steps.needs IS 'Steps that must succeed first, as of acceptance.';
COMMENT ON COLUMN steps.needs_left IS 'How many of them have not succeeded yet.';
COMMENT ON COLUMN steps.attempt IS 'Runs so far; never falls.';
COMMENT ON COLUMN steps.failures IS 'The budget: charged at claim, refunded for a wait, reset by a replay.';
COMMENT ON COLUMN steps.waits IS 'Waits that a provider asked for; bounded by a maximum of their own.';
COMMENT ON COLUMN steps.dispatch IS 'Which message may start the step; grows with each new attempt or replay, never falls.';
COMMENT ON COLUMN steps.fence IS 'Fencing token; grows at each claim, never falls.';
COMMENT ON COLUMN steps.generation IS 'Grows at each replay.';
COMMENT ON COLUMN steps.available_at IS 'When the current dispatch may start.';
COMMENT ON COLUMN steps.attempt_started_at IS 'When the current or last attempt was claimed.';
COMMENT ON COLUMN steps.lease_expires_at IS 'Until when the holder may work; set exactly while running.';
COMMENT ON COLUMN steps.cancel_requested_at IS 'A cancel was asked for; no further attempt starts.';
COMMENT ON COLUMN steps.finished_at IS 'When the step stopped moving by itself.';
COMMENT ON COLUMN steps.result IS 'What the handler returned (canonical JSON).';
COMMENT ON COLUMN steps.error_kind IS 'Stable name of the last failure.';
COMMENT ON COLUMN steps.error IS 'Sanitised text of the last failure.';
-- Not WHERE state = 'running' (the same rows, by CHECK): that would offer the index to every statement which asks for
-- a running step by its key, and with statistics of a quiet moment a settle then walks all leases, dead entries too.
CREATE INDEX steps_by_lease ON steps (lease_expires_at) WHERE lease_expires_at IS NOT NULL;
CREATE INDEX steps_startable ON steps (operation_id) WHERE state = 'waiting' AND needs_left = 0;

CREATE TABLE attempts (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    step text NOT NULL,
    attempt integer NOT NULL,
    generation integer NOT NULL,
    dispatch integer NOT NULL,
    fence bigint NOT NULL,
    outcome text NOT NULL CHECK (outcome IN ('succeeded', 'retry', 'wait', 'failed', 'unresolved', 'exhausted', 'abandoned')),
    error_kind text,
    error text,
    started_at timestamptz NOT NULL,
    ended_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, step, attempt)
);
COMMENT ON TABLE attempts IS 'History: one row for each ended run of a step, written by whoever ended it.';
COMMENT ON COLUMN attempts.operation_id IS 'The operation.';
COMMENT ON COLUMN attempts.step IS 'The step.';
COMMENT ON COLUMN attempts.attempt IS 'Number of the run; never used twice.';
COMMENT ON COLUMN attempts.generation IS 'Generation of the step in this run.';
COMMENT ON COLUMN attempts.dispatch IS 'Dispatch that started this run.';
COMMENT ON COLUMN attempts.fence IS 'Fencing token of this run.';
COMMENT ON COLUMN attempts.outcome IS 'How it ended; abandoned: its lease ran out and reconcile moved the step on.';
COMMENT ON COLUMN attempts.error_kind IS 'Stable name of the failure.';
COMMENT ON COLUMN attempts.error IS 'Sanitised text of the failure.';
COMMENT ON COLUMN attempts.started_at IS 'When it was claimed.';
COMMENT ON COLUMN attempts.ended_at IS 'When it was settled.';

CREATE TABLE outbox (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE CASCADE,
    step text NOT NULL,
    type text NOT NULL,
    dispatch integer NOT NULL,
    available_at timestamptz NOT NULL,
    publish_after timestamptz NOT NULL,
    published integer NOT NULL DEFAULT 0,
    refused integer NOT NULL DEFAULT 0,
    traceparent text,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (operation_id, step)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_cost_delay = 0);
COMMENT ON TABLE outbox IS 'Dispatches that nobody has claimed yet; a row is born with the due step and dies only in the claim (or with the step''s end).';
COMMENT ON COLUMN outbox.operation_id IS 'The operation.';
COMMENT ON COLUMN outbox.step IS 'The step to start.';
COMMENT ON COLUMN outbox.type IS 'Operation type; with the step it names the destination in pipeline.yaml.';
COMMENT ON COLUMN outbox.dispatch IS 'The step''s dispatch that this row stands for.';
COMMENT ON COLUMN outbox.available_at IS 'When the step may start.';
COMMENT ON COLUMN outbox.publish_after IS 'Leased to a publisher until then.';
COMMENT ON COLUMN outbox.published IS 'How often the relay has handed it over without a claim.';
COMMENT ON COLUMN outbox.refused IS 'How often Pub/Sub called this very message invalid.';
COMMENT ON COLUMN outbox.traceparent IS 'W3C trace context of the cause.';
COMMENT ON COLUMN outbox.created_at IS 'When the step became due to be published.';
CREATE INDEX outbox_due ON outbox (publish_after);

CREATE TABLE dead_letters (
    id uuid PRIMARY KEY DEFAULT uuidv7(),
    operation_id uuid,
    step text,
    generation integer,
    digest bytea UNIQUE,
    cause text NOT NULL CHECK (cause IN ('exhausted', 'unresolved', 'undeliverable', 'incompatible', 'malformed', 'unknown', 'undelivered')),
    state text NOT NULL DEFAULT 'open' CHECK (state IN ('open', 'closed')),
    error_kind text,
    error text,
    raw text,
    subscription text,
    message_id text,
    delivery_count integer,
    occurrences integer NOT NULL DEFAULT 1,
    opened_at timestamptz NOT NULL DEFAULT now(),
    last_seen_at timestamptz NOT NULL DEFAULT now(),
    closed_at timestamptz,
    closed_reason text,
    UNIQUE (operation_id, step, generation),
    CHECK ((state = 'closed') = (closed_at IS NOT NULL)),
    CHECK ((digest IS NULL) = (operation_id IS NOT NULL AND step IS NOT NULL AND generation IS NOT NULL))
);
COMMENT ON TABLE dead_letters IS 'The review queue: one row for each (operation, step, generation) that needs a person, or for each malformed message.';
COMMENT ON COLUMN dead_letters.id IS 'UUIDv7 of the review row.';
COMMENT ON COLUMN dead_letters.operation_id IS 'The operation, when the message names one that exists.';
COMMENT ON COLUMN dead_letters.step IS 'The step.';
COMMENT ON COLUMN dead_letters.generation IS 'The step''s generation.';
COMMENT ON COLUMN dead_letters.digest IS 'SHA-256 of a message that belongs to no operation.';
COMMENT ON COLUMN dead_letters.cause IS 'Why it is here; undelivered: a Pub/Sub dead letter whose step is still owned.';
COMMENT ON COLUMN dead_letters.state IS 'open until success or a review action closes it; a new cause opens it again.';
COMMENT ON COLUMN dead_letters.error_kind IS 'Stable name of the failure.';
COMMENT ON COLUMN dead_letters.error IS 'Sanitised text of the failure.';
COMMENT ON COLUMN dead_letters.raw IS 'Excerpt of a malformed message, made safe to look at.';
COMMENT ON COLUMN dead_letters.subscription IS 'Subscription that gave the message up.';
COMMENT ON COLUMN dead_letters.message_id IS 'Pub/Sub''s message id, as a diagnostic.';
COMMENT ON COLUMN dead_letters.delivery_count IS 'Pub/Sub''s own counter, as a diagnostic.';
COMMENT ON COLUMN dead_letters.occurrences IS 'How often this was recorded.';
COMMENT ON COLUMN dead_letters.opened_at IS 'When it was recorded first.';
COMMENT ON COLUMN dead_letters.last_seen_at IS 'When it was recorded last.';
COMMENT ON COLUMN dead_letters.closed_at IS 'When it was closed.';
COMMENT ON COLUMN dead_letters.closed_reason IS 'What closed it.';
CREATE INDEX dead_letters_open ON dead_letters (opened_at) WHERE state = 'open';

-- The state machine's edges; shared/transitions.py holds the same list with the actor of each, a test compares.
CREATE FUNCTION step_edge_is_legal(from_state text, to_state text) RETURNS boolean
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (from_state || '>' || to_state) = ANY (ARRAY[
    'waiting>queued', 'waiting>cancelled',
    'queued>running', 'queued>exhausted', 'queued>unresolved', 'queued>cancelled',
    'running>succeeded', 'running>queued', 'running>failed', 'running>unresolved', 'running>exhausted',
    'unresolved>queued', 'unresolved>succeeded', 'unresolved>discarded',
    'exhausted>queued', 'exhausted>succeeded', 'exhausted>discarded',
    'failed>queued', 'failed>succeeded', 'failed>discarded'
]);
COMMENT ON FUNCTION step_edge_is_legal IS 'Whether a step may move from one state to the other.';

-- The condition stands in the function, which a session plans once; in the trigger's WHEN each statement would plan it.
CREATE FUNCTION check_step_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (OLD.state <> NEW.state AND NOT step_edge_is_legal(OLD.state, NEW.state))
        OR NEW.attempt < OLD.attempt OR NEW.dispatch < OLD.dispatch OR NEW.fence < OLD.fence
        OR NEW.generation < OLD.generation OR NEW.needs_left > OLD.needs_left
    THEN
        RAISE EXCEPTION 'step may not move from % to %', OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'steps_legal_edge';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION check_step_change IS 'Refuses an edge that the state machine does not have, or a counter that would fall.';

CREATE TRIGGER steps_legal_edge BEFORE UPDATE ON steps FOR EACH ROW EXECUTE FUNCTION check_step_change();

CREATE FUNCTION operation_state(was text, steps_left integer, alive integer, in_review integer, failed integer,
    cancelled integer, started boolean) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE
    WHEN alive > 0 AND was = 'requested' AND NOT started THEN 'requested'
    WHEN alive > 0 THEN 'running'
    WHEN in_review > 0 THEN 'needs_review'
    WHEN failed > 0 THEN 'failed'
    WHEN cancelled > 0 THEN 'cancelled'
    WHEN steps_left = 0 THEN 'succeeded'
    ELSE was
END;
COMMENT ON FUNCTION operation_state IS 'An operation''s state from the counts of its steps, by precedence (DESIGN.md section 5).';

-- Runs once for each statement that changes steps, after all of its rows, and counts in the operation's own row:
-- never from siblings' states in a snapshot, which would be blind to a sibling that settles at the same moment.
CREATE FUNCTION steps_moved() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    d record;
BEGIN
    FOR d IN
        SELECT n.operation_id,
            sum((n.state <> 'succeeded')::int - (o.state <> 'succeeded')::int)::int AS steps_left,
            sum((n.state IN ('queued', 'running'))::int - (o.state IN ('queued', 'running'))::int)::int AS alive,
            sum((n.state IN ('unresolved', 'exhausted'))::int - (o.state IN ('unresolved', 'exhausted'))::int)::int AS in_review,
            sum((n.state IN ('failed', 'discarded'))::int - (o.state IN ('failed', 'discarded'))::int)::int AS failed,
            sum((n.state = 'cancelled')::int - (o.state = 'cancelled')::int)::int AS cancelled,
            bool_or(n.state = 'running') AS started,
            -- a claim after the first changes no count and need not touch the operation's row
            bool_or(o.state <> 'queued' OR n.state <> 'running') AS moved
        FROM steps_after AS n
        INNER JOIN steps_before AS o USING (operation_id, step)
        WHERE n.state <> o.state
        GROUP BY n.operation_id
        ORDER BY n.operation_id
    LOOP
        UPDATE operations AS op SET
            steps_left = op.steps_left + d.steps_left,
            steps_alive = op.steps_alive + d.alive,
            steps_in_review = op.steps_in_review + d.in_review,
            steps_failed = op.steps_failed + d.failed,
            steps_cancelled = op.steps_cancelled + d.cancelled,
            (state, finished_at) = (
                SELECT s.state, CASE WHEN s.state IN ('succeeded', 'failed', 'cancelled') THEN now() END
                -- a subquery, so that the function is inlined; in FROM alone it is executed
                FROM (SELECT operation_state(op.state, op.steps_left + d.steps_left, op.steps_alive + d.alive,
                    op.steps_in_review + d.in_review, op.steps_failed + d.failed,
                    op.steps_cancelled + d.cancelled, d.started)) AS s (state)
            )
        WHERE op.id = d.operation_id AND (op.state = 'requested' OR d.moved);
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION steps_moved IS 'Keeps an operation''s counts and state in step with its steps, under the operation''s row lock.';

CREATE TRIGGER steps_moved AFTER UPDATE ON steps
    REFERENCING OLD TABLE AS steps_before NEW TABLE AS steps_after
    FOR EACH STATEMENT EXECUTE FUNCTION steps_moved();

-- Whatever moves a step to where a person is needed opens its review row; one row a generation, opened again by a
-- new cause. It stands in the same transaction, so no such step is ever without its row.
CREATE FUNCTION open_dead_letter() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO dead_letters AS dl (operation_id, step, generation, cause, error_kind, error)
    VALUES (NEW.operation_id, NEW.step, NEW.generation,
        CASE WHEN NEW.error_kind IN ('undeliverable', 'incompatible') THEN NEW.error_kind ELSE NEW.state END,
        NEW.error_kind, NEW.error)
    ON CONFLICT (operation_id, step, generation) DO UPDATE SET
        cause = excluded.cause, error_kind = excluded.error_kind, error = excluded.error, state = 'open',
        closed_at = NULL, closed_reason = NULL, last_seen_at = now(), occurrences = dl.occurrences + 1;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION open_dead_letter IS 'Opens (again) the review row of a step that needs a person.';

CREATE TRIGGER steps_need_review AFTER UPDATE ON steps FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('exhausted', 'unresolved'))
    EXECUTE FUNCTION open_dead_letter();

CREATE FUNCTION close_dead_letters() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- closed_at, not state: keeps the planner to the row's key, away from the index of every open row
    UPDATE dead_letters SET state = 'closed', closed_at = now(), closed_reason = 'step ' || NEW.state
    WHERE operation_id = NEW.operation_id AND step = NEW.step AND closed_at IS NULL;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION close_dead_letters IS 'Closes the review rows of a step that ended well.';

CREATE TRIGGER steps_ended_well AFTER UPDATE ON steps FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('succeeded', 'cancelled', 'discarded'))
    EXECUTE FUNCTION close_dead_letters();
