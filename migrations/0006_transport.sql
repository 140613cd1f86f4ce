-- When a row of the outbox comes up for the relay, now that writers hand over what is due within the horizon themselves.

CREATE FUNCTION outbox_horizon() RETURNS interval LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT interval '5 minutes'
$$;
COMMENT ON FUNCTION outbox_horizon IS 'How far ahead a dispatch is handed over: Cloud Tasks keeps it for so long at most.';

CREATE FUNCTION outbox_turn(available_at timestamptz, writer_lease double precision) RETURNS timestamptz
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT CASE
        WHEN available_at > now() + outbox_horizon() THEN available_at - outbox_horizon()
        WHEN writer_lease <= 0 THEN now()
        ELSE greatest(now(), available_at) + make_interval(secs => writer_lease)
    END
$$;
COMMENT ON FUNCTION outbox_turn IS 'When the relay may first take a row: at the horizon, or when its writer''s lease (seconds, from its due time on) is over; at once when its writer does not hand over.';

CREATE FUNCTION writer_hands_over(available_at timestamptz, writer_lease double precision) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT writer_lease > 0 AND available_at <= now() + outbox_horizon()
$$;
COMMENT ON FUNCTION writer_hands_over IS 'Whether the writer of a row hands it over itself, right after its commit.';

ALTER TABLE outbox ADD COLUMN handed_over boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN outbox.handed_over IS 'Its writer has handed it over, or was about to when it died; false once given back to the relay.';
COMMENT ON COLUMN outbox.publish_after IS 'Leased to a publisher until then; of a row due beyond the horizon: when it comes into it.';

CREATE FUNCTION held_lanes(lanes text[], providers text[]) RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(held.lane), '{}')
    FROM (
        SELECT h.name AS lane FROM holds AS h WHERE h.kind = 'step'
        UNION
        SELECT uses.lane
        FROM unnest(lanes, providers) AS uses (lane, provider)
        INNER JOIN holds AS h ON h.kind = 'provider' AND h.name = uses.provider
    ) AS held
$$;
COMMENT ON FUNCTION held_lanes IS 'The steps (type/step) that may not start now: paused, or one of their providers is held; given which step uses which provider.';

CREATE FUNCTION held_tenants() RETURNS text[] LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(array_agg(h.name), '{}') FROM holds AS h WHERE h.kind = 'tenant'
$$;
COMMENT ON FUNCTION held_tenants IS 'The tenants that are paused.';
