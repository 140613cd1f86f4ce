-- The tables of the usual way, as a hand-written outbox commonly has them: no state machine, no counts, no fence.
CREATE SCHEMA usual;
CREATE TABLE usual.operations (
    id uuid PRIMARY KEY,
    tenant text NOT NULL,
    type text NOT NULL,
    key text NOT NULL,
    input json NOT NULL,
    state text NOT NULL DEFAULT 'requested',
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant, type, key)
);
CREATE TABLE usual.steps (
    operation_id uuid NOT NULL REFERENCES usual.operations,
    step text NOT NULL,
    state text NOT NULL,
    attempts integer NOT NULL DEFAULT 0,
    locked_until timestamptz,
    result json,
    PRIMARY KEY (operation_id, step)
);
CREATE TABLE usual.outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    operation_id uuid NOT NULL REFERENCES usual.operations,
    step text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz
);
CREATE INDEX outbox_unpublished ON usual.outbox (id) WHERE published_at IS NULL;
