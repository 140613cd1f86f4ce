"""Steps whose function reaches the database through a proxy that loses what a test says, and handlers that count."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from shared import steps
from shared.attempt import Handler
from shared.database import Database, connector
from shared.outbox import Outbox
from shared.publisher import Dispatch, Publisher
from shared.step_context import StepContext
from shared.step_function import Delivery, StepFunction
from tests.database.kit import Kit
from tests.database.shop import push
from tests.effects.kit import EffectsKit
from tests.http.proxy import Proxy

MARK = "mark-4711"  # in a result, so that the proxy knows the settle that carries it
SOON = 0.7  # seconds that the database is away


class Line(EffectsKit):
    """Steps whose function reaches the database through a proxy."""

    def __init__(self, database: Database, url: str, folder: Path) -> None:
        super().__init__(database, url, folder)
        self.proxy = Proxy(urlsplit(url).port or 5432)
        through = urlsplit(url)._replace(netloc=f"postgres@127.0.0.1:{self.proxy.port}").geturl()
        self.through = Database(connector(through, application="through"), size=4)
        self.published: list[Dispatch] = []

    def function(self, due: Dispatch, handler: Handler) -> StepFunction:
        outbox = Outbox(self.through, self.pipeline, Noting(self.published))
        return StepFunction(self.pipeline.step(due.type, due.step).function, handler, outbox, self.pipeline)

    def through_proxy(self, due: Dispatch, handler: Handler) -> Delivery:
        """Deliver a message to a function behind the proxy."""
        return self.function(due, handler).deliver(push(due), {"content-type": "application/json"})

    def away(self, seconds: float = SOON) -> None:
        """Take the database away from the function for a moment."""
        self.proxy.refuse(refusing=True)
        threading.Timer(seconds, lambda: self.proxy.refuse(refusing=False)).start()

    def close(self) -> None:
        self.through.close()
        self.proxy.close()
        super().close()

    def outcomes(self, operation_id: UUID) -> list[str]:
        rows = self.query(f"SELECT outcome FROM attempts WHERE operation_id = '{operation_id}' ORDER BY attempt")
        return [row[0] for row in rows]


class Noting(Publisher):
    """A publisher that only notes what it was given."""

    def __init__(self, published: list[Dispatch]) -> None:
        super().__init__("test-project")
        self._published = published

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = 0) -> None:
        """Note them."""
        self._published += dispatches


class Counted:
    """A handler that counts its runs."""

    def __init__(self, work: Callable[[StepContext], object] = lambda _: None) -> None:
        self.runs = 0
        self.first = list[bool]()
        self._work = work

    def __call__(self, ctx: StepContext) -> dict[str, Any]:
        self.runs += 1
        self.first.append(ctx.first_run)
        self._work(ctx)
        return {"mark": MARK}


def refuse_once(kit: Kit, place: tuple[str, str], sqlstate: str) -> None:
    """Let PostgreSQL end the next statement that does this with a conflict, once; a sequence never rolls back."""
    table, when = place
    kit.query("CREATE SEQUENCE refusals")
    kit.query(f"""
        CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF nextval('refusals') = 1 THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{sqlstate}'; END IF;
            RETURN NEW;
        END $$""")
    kit.query(f"CREATE TRIGGER refuse BEFORE {when.replace('ON', f'ON {table}', 1)} EXECUTE FUNCTION refuse()")


def refusals(kit: Kit) -> int:
    """How often the statement came, the refused one included; 0: never."""
    return int(kit.value("SELECT CASE WHEN is_called THEN last_value ELSE 0 END FROM refusals"))


def held(ctx: StepContext) -> steps.Claim:
    return ctx._claim


def settled_once(line: Line, operation_id: UUID) -> None:
    """The step has succeeded in one attempt, the next one is due once, and nothing is charged but that attempt."""
    assert line.outcomes(operation_id) == ["succeeded"]
    assert line.states(operation_id) == {"first": "succeeded", "second": "queued"}
    assert line.query("SELECT failures, attempt, waits FROM steps WHERE step = 'first'") == [[1, 1, 0]]
    assert [(one.step, one.dispatch) for one in line.dispatches(operation_id)] == [("second", 1)]
    line.check_invariant()
