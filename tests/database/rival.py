"""Somebody else's intake, which holds its transaction open as long as a test wants."""

from __future__ import annotations

import time
from typing import Any

from shared import operations
from shared.database import Connection, connector
from shared.identity import Request
from tests.database.kit import Kit

LONG = 30.0  # seconds; far longer than anything here takes on a busy machine


class Rival:
    """An accepted operation that is not committed yet."""

    def __init__(self, kit: Kit, key: str, given: dict[str, Any], tenant: str = "shop") -> None:
        request = Request("test.single", given)
        self._connection = Connection(connector(kit.url, application="rival")())
        self._connection.execute("BEGIN")
        parameters = operations._accept_parameters(kit.pipeline, tenant, key, request, None)
        self.operation_id = self._connection.run("accept_operation", **parameters)[0].id

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, how: str) -> None:
        self._connection.execute(how)
        self._connection.close()


def wait_until_blocked(kit: Kit, count: int = 1) -> list[int]:
    """Wait until so many statements wait for another transaction; return their backends."""
    deadline = time.monotonic() + LONG
    while time.monotonic() < deadline:
        rows = kit.query(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        )
        if len(rows) >= count:
            return [pid for (pid,) in rows]
        time.sleep(0.01)
    raise AssertionError("nothing waits")
