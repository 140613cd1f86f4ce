-- A role a function: what each may do, and nothing else (docs/database-roles.md has the whole table, a test compares).
-- Roles belong to the whole server, so they may be there already, made for another database or at this very moment.

CREATE FUNCTION make_role(name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
        EXECUTE format('CREATE ROLE %I NOLOGIN', name);
    END IF;
EXCEPTION WHEN duplicate_object OR unique_violation THEN
    NULL;  -- another database's migration was faster
END $$;
COMMENT ON FUNCTION make_role IS 'Makes a role that cannot log in, unless it is there; whoever calls it needs CREATEROLE.';

CREATE FUNCTION has_direct_role(member_name text, role_name text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM pg_auth_members AS m
        INNER JOIN pg_roles AS r ON r.oid = m.roleid
        INNER JOIN pg_roles AS u ON u.oid = m.member
        WHERE r.rolname = role_name AND u.rolname = member_name AND m.inherit_option
    )
$$;
COMMENT ON FUNCTION has_direct_role IS 'Whether a role was granted to a user or role itself, with its rights.';

CREATE FUNCTION give_role(member_name text, role_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    FOR try IN 1..10 LOOP
        IF has_direct_role(member_name, role_name) THEN
            RETURN;
        END IF;
        BEGIN
            EXECUTE format('GRANT %I TO %I WITH INHERIT TRUE', role_name, member_name);
            RETURN;
        -- "tuple concurrently updated": another database's migration grants the same
        EXCEPTION WHEN unique_violation OR internal_error THEN
            IF try = 10 THEN
                RAISE;
            END IF;
        END;
    END LOOP;
END $$;
COMMENT ON FUNCTION give_role IS 'Grants a role with its rights, unless that was done; whoever calls it needs the role''s admin option.';

CREATE FUNCTION take_role(member_name text, role_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('REVOKE %I FROM %I', role_name, member_name);
    IF has_direct_role(member_name, role_name) THEN
        RAISE EXCEPTION 'role % was granted to % by somebody else, who must revoke it', role_name, member_name
            USING ERRCODE = 'insufficient_privilege';
    END IF;
END $$;
COMMENT ON FUNCTION take_role IS 'Revokes a role; fails when it was granted by somebody else.';

CREATE FUNCTION make_step_role(function text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF function !~ '^[a-z][a-z0-9]*(_[a-z0-9]+)*$' OR length(function) > 25 OR function ~ '^(actor|local)_'
        OR function IN ('intake', 'relay', 'reconcile', 'dead_letter', 'console', 'migrate', 'every_step')
    THEN
        RAISE EXCEPTION '% is no name of a step function', function USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM make_role('echoproof_' || function);
    PERFORM give_role('echoproof_' || function, 'echoproof_every_step');
END $$;
COMMENT ON FUNCTION make_step_role IS 'Makes the role of a step function, with the rights that every step has; the function''s own tables are granted to it by the migration that makes them.';

REVOKE EXECUTE ON FUNCTION make_role, give_role, take_role, make_step_role FROM PUBLIC;

-- Who moves a step: one role an actor of shared/transitions.py, a test compares.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['actor_admit', 'actor_cancel', 'actor_claim', 'actor_reconcile', 'actor_relay',
        'actor_review', 'actor_settle', 'console', 'dead_letter', 'every_step', 'intake', 'reconcile', 'relay']
    LOOP
        PERFORM make_role('echoproof_' || name);
    END LOOP;
END $$;
SELECT give_role('echoproof_console', 'echoproof_actor_review');
SELECT give_role('echoproof_every_step', 'echoproof_actor_claim');
SELECT give_role('echoproof_every_step', 'echoproof_actor_settle');
SELECT give_role('echoproof_intake', 'echoproof_actor_admit');
SELECT give_role('echoproof_intake', 'echoproof_actor_cancel');
SELECT give_role('echoproof_reconcile', 'echoproof_actor_admit');
SELECT give_role('echoproof_reconcile', 'echoproof_actor_reconcile');
SELECT give_role('echoproof_relay', 'echoproof_actor_relay');
SELECT make_step_role(function)
FROM unnest(ARRAY['invoice_announce', 'invoice_collect', 'invoice_notify', 'invoice_record', 'invoice_render',
    'report_generate', 'report_notify']) AS steps (function);

CREATE FUNCTION step_edge_actors(from_state text, to_state text) RETURNS text[]
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE from_state || '>' || to_state
    WHEN 'queued>running' THEN ARRAY['claim']
    WHEN 'running>succeeded' THEN ARRAY['settle']
    WHEN 'waiting>queued' THEN ARRAY['settle', 'admit', 'reconcile', 'review']
    WHEN 'waiting>cancelled' THEN ARRAY['cancel', 'review']
    WHEN 'queued>exhausted' THEN ARRAY['claim', 'relay', 'reconcile']
    -- meant to be cancelled or exhausted, by a step with an open effect
    WHEN 'queued>unresolved' THEN ARRAY['claim', 'cancel', 'relay', 'reconcile']
    WHEN 'queued>cancelled' THEN ARRAY['claim', 'cancel']
    WHEN 'running>queued' THEN ARRAY['settle', 'reconcile']
    WHEN 'running>failed' THEN ARRAY['settle']
    WHEN 'running>unresolved' THEN ARRAY['settle', 'reconcile']
    WHEN 'running>exhausted' THEN ARRAY['settle', 'reconcile']
    WHEN 'unresolved>queued' THEN ARRAY['reconcile', 'review']
    WHEN 'unresolved>succeeded' THEN ARRAY['review']
    WHEN 'unresolved>discarded' THEN ARRAY['review']
    WHEN 'exhausted>queued' THEN ARRAY['review']
    WHEN 'exhausted>succeeded' THEN ARRAY['review']
    WHEN 'exhausted>discarded' THEN ARRAY['review']
    WHEN 'failed>queued' THEN ARRAY['review']
    WHEN 'failed>succeeded' THEN ARRAY['review']
    WHEN 'failed>discarded' THEN ARRAY['review']
END;
COMMENT ON FUNCTION step_edge_actors IS 'The actors that may move a step from one state to the other; null when nobody may.';

-- What is asked before a step changes, in one function: a trigger's WHEN is planned by every statement, a function by a
-- session. It runs with the rights of whoever changes the step, because it asks which actors that is; the query of
-- effects sees what is committed now, not the statement's snapshot.
CREATE OR REPLACE FUNCTION check_step_change() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    open_effects boolean;
    confirmed boolean;
    actors text[];
    actor text;
BEGIN
    IF OLD.state <> NEW.state AND OLD.state IN ('waiting', 'queued', 'running')
        AND NEW.state IN ('succeeded', 'failed', 'cancelled', 'exhausted')
    THEN
        SELECT bool_or(e.state IN ('intended', 'unknown')), bool_or(e.state = 'confirmed') INTO open_effects, confirmed
        FROM effects AS e
        WHERE e.operation_id = NEW.operation_id AND e.step = NEW.step;
        IF open_effects THEN
            NEW.state := 'unresolved';
            NEW.result := NULL;
            NEW.error_kind := coalesce(NEW.error_kind, 'effect_open');
        ELSIF confirmed AND NEW.state = 'cancelled' THEN
            NEW.state := OLD.state;
            NEW.finished_at := OLD.finished_at;
            NEW.cancel_requested_at := NULL;
        END IF;
    END IF;
    IF OLD.state <> NEW.state THEN
        actors := step_edge_actors(OLD.state, NEW.state);
    END IF;
    IF (OLD.state <> NEW.state AND actors IS NULL)
        OR NEW.attempt < OLD.attempt OR NEW.dispatch < OLD.dispatch OR NEW.fence < OLD.fence
        OR NEW.generation < OLD.generation OR NEW.needs_left > OLD.needs_left
    THEN
        RAISE EXCEPTION 'step may not move from % to %', OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'steps_legal_edge';
    END IF;
    IF actors IS NULL THEN
        RETURN NEW;
    END IF;
    FOREACH actor IN ARRAY actors LOOP
        IF pg_has_role('echoproof_actor_' || actor, 'USAGE') THEN
            RETURN NEW;
        END IF;
    END LOOP;
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'not an actor that may move a step from % to %', OLD.state, NEW.state
        USING ERRCODE = 'insufficient_privilege';
END $$;
COMMENT ON FUNCTION check_step_change IS 'Makes a step with an open effect unresolved instead of ended, and spares one with a confirmed effect a cancel; refuses an edge that the state machine does not have, a counter that would fall, and an edge of another actor.';
DROP TRIGGER steps_guard_open_effects ON steps;
DROP FUNCTION guard_open_effects;

-- What follows from a step's move is the database's own doing: whoever moves steps needs no right on an operation's
-- state, nor on the review queue. The same statements as before, in the same order: no lock is taken otherwise.
ALTER FUNCTION steps_moved SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp;

CREATE FUNCTION keep_dead_letter() RETURNS trigger LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NEW.state IN ('exhausted', 'unresolved') THEN
        INSERT INTO dead_letters AS dl (operation_id, step, generation, cause, error_kind, error)
        VALUES (NEW.operation_id, NEW.step, NEW.generation,
            CASE WHEN NEW.error_kind IN ('undeliverable', 'incompatible') THEN NEW.error_kind ELSE NEW.state END,
            NEW.error_kind, NEW.error)
        ON CONFLICT (operation_id, step, generation) DO UPDATE SET
            cause = excluded.cause, error_kind = excluded.error_kind, error = excluded.error, state = 'open',
            closed_at = NULL, closed_reason = NULL, last_seen_at = now(), occurrences = dl.occurrences + 1;
    ELSE
        -- closed_at, not state: keeps the planner to the row's key, away from the index of every open row
        UPDATE dead_letters SET state = 'closed', closed_at = now(), closed_reason = 'step ' || NEW.state
        WHERE operation_id = NEW.operation_id AND step = NEW.step AND closed_at IS NULL;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION keep_dead_letter IS 'Opens (again) the review row of a step that needs a person, and closes those of a step that ended well.';
DROP TRIGGER steps_need_review ON steps;
DROP TRIGGER steps_ended_well ON steps;
DROP FUNCTION open_dead_letter, close_dead_letters;
CREATE TRIGGER steps_keep_dead_letter AFTER UPDATE ON steps FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('exhausted', 'unresolved', 'succeeded', 'cancelled', 'discarded'))
    EXECUTE FUNCTION keep_dead_letter();

-- For dead_letter, which records only: a row lock needs a right to change the row, and it shall have none.
CREATE FUNCTION lock_step(of_operation uuid, of_step text) RETURNS TABLE (state text, generation integer)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp AS $$
    SELECT s.state, s.generation FROM steps AS s WHERE s.operation_id = of_operation AND s.step = of_step
    FOR NO KEY UPDATE
$$;
COMMENT ON FUNCTION lock_step IS 'Locks a step''s row, as whatever moves the step does, and tells its state and generation.';
REVOKE EXECUTE ON FUNCTION lock_step FROM PUBLIC;
GRANT EXECUTE ON FUNCTION lock_step TO echoproof_dead_letter;

-- A decision without its audit row is taken back: the console's role alone does not make a decision.
CREATE FUNCTION check_review() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- one after another: a statement that names reviews needs the right to read it, whatever comes of it
    IF pg_has_role('echoproof_actor_reconcile', 'USAGE') THEN
        RETURN NULL;
    END IF;
    IF pg_has_role((SELECT relowner FROM pg_class WHERE oid = TG_RELID), 'USAGE') THEN
        RETURN NULL;
    END IF;
    -- at is the time of the transaction that wrote it, and not the console's to choose
    PERFORM FROM reviews AS r WHERE r.operation_id = NEW.operation_id AND r.step = NEW.step AND r.at = now();
    IF NOT FOUND THEN
        RAISE EXCEPTION 'a decision needs its row in reviews, in the same transaction'
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION check_review IS 'Refuses a review action that leaves no row in reviews.';

CREATE CONSTRAINT TRIGGER steps_reviewed AFTER UPDATE ON steps DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND OLD.state IN ('unresolved', 'exhausted', 'failed'))
    EXECUTE FUNCTION check_review();

-- intake: accepts, tells, cancels, admits; hands over what it made due.
GRANT SELECT, INSERT (tenant, type, key, operation_id, fingerprint, fingerprint_version)
    ON identities TO echoproof_intake;
GRANT SELECT, INSERT (id, tenant, type, key, input, not_before, deadline, ordering_key, position, traceparent,
    steps_left, steps_alive, admitted_at), UPDATE (admitted_at, cancel_requested_at) ON operations TO echoproof_intake;
GRANT SELECT, INSERT (operation_id, step, needs, needs_left, state, dispatch, available_at),
    UPDATE (state, dispatch, available_at, cancel_requested_at, finished_at) ON steps TO echoproof_intake;
GRANT SELECT (operation_id, step, state, unknown_since) ON effects TO echoproof_intake;
GRANT SELECT, INSERT, UPDATE (tail) ON ordering_keys TO echoproof_intake;
GRANT USAGE ON SEQUENCE operation_positions TO echoproof_intake;

-- Who makes steps due writes outbox rows, and gives back what it could not hand over.
GRANT SELECT, INSERT (operation_id, step, type, dispatch, available_at, publish_after, handed_over, traceparent)
    ON outbox TO echoproof_console, echoproof_every_step, echoproof_intake, echoproof_reconcile;
GRANT UPDATE (publish_after, published, handed_over)
    ON outbox TO echoproof_every_step, echoproof_intake, echoproof_reconcile, echoproof_relay;
GRANT DELETE ON outbox TO echoproof_every_step, echoproof_intake, echoproof_reconcile, echoproof_relay;

-- Every step: claims, keeps its lease and its ledger, settles, admits what comes next, records messages that it cannot
-- read.
GRANT SELECT (operation_id) ON identities TO echoproof_every_step;
GRANT SELECT, UPDATE (admitted_at) ON operations TO echoproof_every_step;
GRANT SELECT, UPDATE (state, needs_left, attempt, failures, waits, dispatch, fence, available_at, attempt_started_at,
    lease_expires_at, finished_at, result, error_kind, error, due_at) ON steps TO echoproof_every_step;
GRANT SELECT, INSERT ON attempts TO echoproof_every_step;
GRANT SELECT, INSERT (operation_id, step, name, provider, state, provider_key, request, essence, unaccounted,
        send_deadline, key_expires_at, unknown_since),
    UPDATE (provider, state, request, essence, permits, unaccounted, send_deadline, key_expires_at, lookups, response,
        reference, reason, evidence, version, unknown_since, confirmed_at, key_spent) ON effects TO echoproof_every_step;
GRANT SELECT ON recovery, pauses TO echoproof_every_step;
GRANT SELECT, INSERT (provider, failures), UPDATE (failures, openings, probing, opened_at, open_until)
    ON circuits TO echoproof_every_step;
GRANT SELECT, UPDATE (newest_available_at, claimed_at) ON progress TO echoproof_every_step;
GRANT SELECT, INSERT, UPDATE (next_at) ON paces TO echoproof_every_step;
GRANT SELECT, UPDATE (tail) ON ordering_keys TO echoproof_every_step;  -- for its lock

-- Messages that belong to no step, and those of a step that Pub/Sub gave up.
GRANT SELECT (id, digest, state, occurrences, delivery_count),
    INSERT (digest, cause, error_kind, error, raw, subscription, message_id, delivery_count),
    UPDATE (occurrences, last_seen_at, delivery_count) ON dead_letters TO echoproof_every_step, echoproof_dead_letter;
GRANT SELECT (operation_id, step, generation, subscription, message_id),
    INSERT (operation_id, step, generation, state, closed_at, closed_reason), UPDATE (subscription, message_id)
    ON dead_letters TO echoproof_dead_letter;
GRANT SELECT (operation_id) ON identities TO echoproof_dead_letter;
GRANT SELECT (id, type, tenant) ON operations TO echoproof_dead_letter;
GRANT SELECT (operation_id, step, state, dispatch, available_at, result) ON steps TO echoproof_dead_letter;
GRANT SELECT ON pauses, circuits TO echoproof_dead_letter;

-- relay: leases rows, and ends the step of one that cannot be published.
GRANT SELECT, UPDATE (refused) ON outbox TO echoproof_relay;
GRANT SELECT (id, tenant) ON operations TO echoproof_relay;
GRANT SELECT (operation_id, step, state, dispatch), UPDATE (state, finished_at, error_kind, error)
    ON steps TO echoproof_relay;
GRANT SELECT (operation_id, step, state) ON effects TO echoproof_relay;
GRANT SELECT, INSERT (type, step) ON progress TO echoproof_relay;
GRANT SELECT ON circuits, holds TO echoproof_relay;

-- reconcile: what time decides, up to the end of a record.
GRANT SELECT, UPDATE (pruned_at), DELETE ON identities TO echoproof_reconcile;
GRANT SELECT, UPDATE (admitted_at), DELETE ON operations TO echoproof_reconcile;
GRANT SELECT, UPDATE (state, failures, dispatch, available_at, lease_expires_at, finished_at, error_kind, error, lookups)
    ON steps TO echoproof_reconcile;
GRANT INSERT ON attempts TO echoproof_reconcile;
GRANT SELECT (operation_id, step, state, unknown_since, confirmed_at), DELETE ON effects TO echoproof_reconcile;
GRANT SELECT (operation_id, cause, state, opened_at, closed_at), DELETE ON dead_letters TO echoproof_reconcile;
GRANT SELECT, UPDATE (tail), DELETE ON ordering_keys TO echoproof_reconcile;
GRANT SELECT ON holds TO echoproof_reconcile;

-- console: looks at everything but the business tables, and decides about steps that rest.
GRANT SELECT ON operations, steps, attempts, outbox, effects, dead_letters, reviews, pauses, circuits, ordering_keys,
    schema_migrations TO echoproof_console;
GRANT UPDATE (deadline) ON operations TO echoproof_console;
GRANT UPDATE (state, needs_left, failures, waits, dispatch, generation, available_at, cancel_requested_at, finished_at,
    result, error_kind, error, lookups, due_at) ON steps TO echoproof_console;
GRANT INSERT (operation_id, step, name, generation, provider, state, provider_key, reason, evidence),
    UPDATE (state, unaccounted, send_deadline, key_expires_at, response, reference, reason, evidence, version,
        unknown_since, confirmed_at) ON effects TO echoproof_console;
GRANT UPDATE (state, closed_at, closed_reason) ON dead_letters TO echoproof_console;
GRANT INSERT (actor, action, mode, reason, dead_letter_id, operation_id, step, generation, before, after)
    ON reviews TO echoproof_console;
GRANT INSERT (kind, name, actor, reason), DELETE ON pauses TO echoproof_console;
GRANT INSERT, UPDATE (tail) ON ordering_keys TO echoproof_console;

-- The tables of invoicing: to the steps that write them and those that read them.
GRANT SELECT, INSERT, UPDATE (last_number) ON invoice_counters TO echoproof_invoice_record;
GRANT SELECT, INSERT ON invoices TO echoproof_invoice_record;
GRANT INSERT ON invoice_lines TO echoproof_invoice_record;
GRANT SELECT ON invoices, invoice_lines TO echoproof_invoice_render;
GRANT SELECT ON invoices TO echoproof_invoice_collect, echoproof_invoice_notify, echoproof_report_generate;
GRANT SELECT, INSERT ON artifacts TO echoproof_invoice_render, echoproof_report_generate;
GRANT SELECT ON artifacts TO echoproof_invoice_notify, echoproof_report_notify;
GRANT SELECT, INSERT ON notifications TO echoproof_invoice_notify, echoproof_report_notify;
