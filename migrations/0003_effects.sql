-- The effect ledger: every call to an outside provider, intended before it is sent and accounted for afterwards.

CREATE TABLE effects (
    operation_id uuid NOT NULL REFERENCES operations ON DELETE RESTRICT,
    step text NOT NULL,
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    generation integer NOT NULL DEFAULT 1 CHECK (generation >= 1),
    provider text NOT NULL,
    state text NOT NULL CHECK (state IN ('approved', 'intended', 'unknown', 'not_sent', 'confirmed', 'rejected')),
    provider_key text NOT NULL UNIQUE,
    request bytea,
    essence bytea,
    permits integer NOT NULL DEFAULT 0 CHECK (permits >= 0),
    unaccounted integer NOT NULL DEFAULT 0 CHECK (unaccounted >= 0),
    send_deadline timestamptz,
    key_expires_at timestamptz,
    lookups integer NOT NULL DEFAULT 0 CHECK (lookups >= 0),
    response json,
    reference text,
    reason text,
    evidence text,
    version integer NOT NULL DEFAULT 1,
    intended_at timestamptz NOT NULL DEFAULT now(),
    unknown_since timestamptz,
    confirmed_at timestamptz,
    PRIMARY KEY (operation_id, step, name, generation),
    CHECK ((state = 'approved') = (request IS NULL)),
    CHECK ((state = 'confirmed') = (confirmed_at IS NOT NULL)),
    CHECK ((state = 'unknown') = (unknown_since IS NOT NULL)),
    CHECK (state NOT IN ('not_sent', 'rejected', 'confirmed') OR unaccounted = 0)
) WITH (fillfactor = 70);
COMMENT ON TABLE effects IS 'One outside effect of a step; open while intended or unknown. No row is ever removed under an open effect.';
COMMENT ON COLUMN effects.operation_id IS 'The operation.';
COMMENT ON COLUMN effects.step IS 'The step that wants the effect.';
COMMENT ON COLUMN effects.name IS 'The handler''s name for it, unique within the step.';
COMMENT ON COLUMN effects.generation IS 'Grows only by a review action that names this effect; the highest is the current one.';
COMMENT ON COLUMN effects.provider IS 'Name of the provider.';
COMMENT ON COLUMN effects.state IS 'approved (by review, not yet intended), intended, unknown, not_sent, confirmed or rejected.';
COMMENT ON COLUMN effects.provider_key IS 'Key sent to the provider: a hash of the identity, step, effect and generation, never of the random id.';
COMMENT ON COLUMN effects.request IS 'The exact bytes to send; a later attempt sends these, not what it would build.';
COMMENT ON COLUMN effects.essence IS 'SHA-256 of what makes it this effect and no other; a handler that now asks for something else is stopped.';
COMMENT ON COLUMN effects.permits IS 'Sends that were permitted.';
COMMENT ON COLUMN effects.unaccounted IS 'Permitted sends without a definite answer of their own.';
COMMENT ON COLUMN effects.send_deadline IS 'Until when the last permitted send may still be under way.';
COMMENT ON COLUMN effects.key_expires_at IS 'Until when the provider recognises the key, counted from the first unaccounted send.';
COMMENT ON COLUMN effects.lookups IS 'Lookups that were made.';
COMMENT ON COLUMN effects.response IS 'The provider''s answer, as the handler gets it again.';
COMMENT ON COLUMN effects.reference IS 'The provider''s own id of the effect.';
COMMENT ON COLUMN effects.reason IS 'Why it is not confirmed: stable, without personal data.';
COMMENT ON COLUMN effects.evidence IS 'How the outcome is known: answer, lookup or review.';
COMMENT ON COLUMN effects.version IS 'Grows with every change; a review action names the one that it saw.';
COMMENT ON COLUMN effects.intended_at IS 'When it was first written.';
COMMENT ON COLUMN effects.unknown_since IS 'Since when its outcome is unknown.';
COMMENT ON COLUMN effects.confirmed_at IS 'When its confirmation was recorded.';
CREATE INDEX effects_unknown ON effects (unknown_since) WHERE state = 'unknown';

CREATE TABLE recovery (
    started_at timestamptz PRIMARY KEY DEFAULT now(),
    ended_at timestamptz,
    CHECK (ended_at IS NULL OR ended_at >= started_at)
);
COMMENT ON TABLE recovery IS 'Periods after a restore in which every effect is looked up before it is sent.';
COMMENT ON COLUMN recovery.started_at IS 'When recovery began; sends before it may have been forgotten by the restore.';
COMMENT ON COLUMN recovery.ended_at IS 'When it was declared over.';
CREATE UNIQUE INDEX recovery_one_at_a_time ON recovery ((ended_at IS NULL)) WHERE ended_at IS NULL;

ALTER TABLE steps ADD COLUMN lookups integer NOT NULL DEFAULT 0 CHECK (lookups >= 0);
COMMENT ON COLUMN steps.lookups IS 'How often reconcile has queued the unresolved step to look its effects up again.';
CREATE INDEX steps_to_look_up ON steps (available_at) WHERE state = 'unresolved';

-- A step with an open effect does not end; it becomes unresolved, whoever ends it and however. One whose effect is
-- confirmed is not cancelled: it goes on to be settled. The query sees what is committed now, not the statement's
-- snapshot, because a plpgsql function takes a snapshot of its own.
CREATE FUNCTION guard_open_effects() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    open_effects boolean;
    confirmed boolean;
BEGIN
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
    RETURN NEW;
END $$;
COMMENT ON FUNCTION guard_open_effects IS 'Makes a step with an open effect unresolved instead of ended, and spares one with a confirmed effect a cancel.';

CREATE TRIGGER steps_guard_open_effects BEFORE UPDATE ON steps FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND OLD.state IN ('waiting', 'queued', 'running')
        AND NEW.state IN ('succeeded', 'failed', 'cancelled', 'exhausted'))
    EXECUTE FUNCTION guard_open_effects();
