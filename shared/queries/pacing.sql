-- Turns of paced functions.

-- name: take_turn
-- Takes the function's next free turn and says how far away it is (seconds); no row: further than may be waited for.
INSERT INTO paces AS p (function, next_at)
VALUES (:function, clock_timestamp() + make_interval(secs => CAST(:interval AS float8)))
ON CONFLICT (function) DO UPDATE SET
    next_at = greatest(p.next_at, clock_timestamp()) + make_interval(secs => CAST(:interval AS float8))
    WHERE p.next_at < clock_timestamp() + make_interval(secs => CAST(:longest AS float8))
RETURNING extract(epoch FROM p.next_at - make_interval(secs => CAST(:interval AS float8)) - clock_timestamp())::float8
    AS seconds;
