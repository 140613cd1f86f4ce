-- A paced step's own turns: a queue's token bucket lets a burst through, a rate-limited provider does not.

CREATE TABLE paces (
    function text PRIMARY KEY,
    next_at timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE paces IS 'When the next attempt of a paced function may start its handler; one row each, moved on by every start.';
COMMENT ON COLUMN paces.function IS 'The step function.';
COMMENT ON COLUMN paces.next_at IS 'The first turn that nobody has taken.';
