-- What holds steps back without failing them: a person's pause, a provider's open circuit. And how far each topic has
-- been consumed, so that a backlog is not published again.

CREATE TABLE pauses (
    kind text NOT NULL CHECK (kind IN ('step', 'tenant', 'provider')),
    name text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    actor text NOT NULL,
    reason text NOT NULL,
    paused_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
COMMENT ON TABLE pauses IS 'What a person has paused: claims of it answer early, its outbox rows stay.';
COMMENT ON COLUMN pauses.kind IS 'step (type/step), tenant or provider.';
COMMENT ON COLUMN pauses.name IS 'Its name.';
COMMENT ON COLUMN pauses.actor IS 'Who paused it.';
COMMENT ON COLUMN pauses.reason IS 'Why.';
COMMENT ON COLUMN pauses.paused_at IS 'When.';

CREATE TABLE circuits (
    provider text PRIMARY KEY,
    failures integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
    openings integer NOT NULL DEFAULT 0 CHECK (openings >= 0),
    probing boolean NOT NULL DEFAULT false,
    opened_at timestamptz,
    open_until timestamptz,
    CHECK ((opened_at IS NULL) = (open_until IS NULL)),
    CHECK (open_until IS NOT NULL OR NOT probing)
);
COMMENT ON TABLE circuits IS 'One circuit breaker a provider; open while open_until is set: then one step at a time may try it.';
COMMENT ON COLUMN circuits.provider IS 'Name of the provider.';
COMMENT ON COLUMN circuits.failures IS 'Calls in a row that had no answer.';
COMMENT ON COLUMN circuits.openings IS 'Times in a row that it opened.';
COMMENT ON COLUMN circuits.probing IS 'A step has been let through to try the provider.';
COMMENT ON COLUMN circuits.opened_at IS 'Since when it is open.';
COMMENT ON COLUMN circuits.open_until IS 'When the next step may try it.';

CREATE VIEW holds AS
SELECT kind, name FROM pauses
UNION ALL
SELECT 'provider', provider FROM circuits WHERE open_until IS NOT NULL;
COMMENT ON VIEW holds IS 'What may not start now: everything that is paused, and providers whose circuit is open.';

CREATE TABLE progress (
    type text NOT NULL,
    step text NOT NULL,
    newest_available_at timestamptz NOT NULL DEFAULT '-infinity',
    claimed_at timestamptz NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (type, step)
) WITH (fillfactor = 50);
COMMENT ON TABLE progress IS 'How far each topic has been consumed; moved on by claims, at most once a second. The relay makes the rows.';
COMMENT ON COLUMN progress.type IS 'Operation type.';
COMMENT ON COLUMN progress.step IS 'The step.';
COMMENT ON COLUMN progress.newest_available_at IS 'available_at of the newest dispatch that was claimed.';
COMMENT ON COLUMN progress.claimed_at IS 'When that was noted.';

ALTER TABLE steps ADD COLUMN due_at timestamptz;
COMMENT ON COLUMN steps.due_at IS 'When the first dispatch of this generation could start, noted at its claim; the step''s own deadline counts from here.';
