"""A statement that pauses between its select and its update: row security asks a function that waits for the test."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

from shared.database import Connection, Database, connector
from tests.database.kit import Kit

GATE = 4711  # the advisory lock that the function waits for
LONG = 30.0  # seconds; far longer than anything here takes on a busy machine
# A role that row security holds for; the policy lets every row through, once the gate is open.
SETUP = f"""
DO $$ BEGIN CREATE ROLE sweeper LOGIN; EXCEPTION WHEN duplicate_object THEN NULL; END $$;
GRANT ALL ON ALL TABLES IN SCHEMA public TO sweeper;
GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO sweeper;
CREATE FUNCTION pass_gate() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_lock_shared({GATE});
    PERFORM pg_advisory_unlock_shared({GATE});
    RETURN true;
END $$;
ALTER TABLE operations ENABLE ROW LEVEL SECURITY;
CREATE POLICY gate ON operations USING (pass_gate());
"""


@contextlib.contextmanager
def sweeper(kit: Kit) -> Iterator[Database]:
    """Give a database whose statements pause at the first operation that they read, while the gate is closed."""
    admin = Connection(connector(kit.url)())
    admin.execute(SETUP)
    admin.close()
    url = urlsplit(kit.url)._replace(netloc=f"sweeper@127.0.0.1:{urlsplit(kit.url).port}").geturl()
    database = Database(connector(url, application="sweeper"), size=2)
    yield database
    database.close()


@contextlib.contextmanager
def closed_gate(kit: Kit) -> Iterator[None]:
    """Close the gate for as long as the block runs."""
    connection = Connection(connector(kit.url, application="gate")())
    connection.execute(f"SELECT pg_advisory_lock({GATE})")
    yield
    connection.close()


def paused(kit: Kit) -> int:
    """Wait until a statement stands before the gate and return its backend."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        rows = kit.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'sweeper' "
            "AND wait_event = 'advisory'"
        )
        if rows:
            return int(rows[0][0])
        time.sleep(0.01)
    raise AssertionError("nothing is paused")
