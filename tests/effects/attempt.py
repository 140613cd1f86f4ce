"""One delivery in a process of its own, which is killed by a real SIGKILL at a point that the test names.

Each is forked from a server process that has imported this module and done nothing else (Python's `forkserver`), so
that it costs milliseconds. The points are reached through what is passed in: the database and the provider.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from shared.database import Database, Row, connector
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.providers import Lookup, Outcome, Provider
from shared.providers.email import Email
from shared.providers.message import Letter
from shared.providers.payments import Payments
from shared.providers.storage import Storage
from shared.providers.webhook import Webhook
from shared.publisher import Dispatch, Publisher
from shared.step_context import StepContext
from shared.step_function import StepFunction
from tests.database.shop import push

PATIENCE = 30.0  # seconds that one delivery may take
BEFORE, AFTER = "before", "after"
ANSWER, ACK = "answer", "ack"

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload([__name__])


@dataclass(frozen=True)
class Place:
    """What a process needs: its database, its pipeline's file, the provider's class and environment."""

    url: str
    pipeline: Path
    provider: str
    environment: Mapping[str, str]


@dataclass(frozen=True)
class Death:
    """Where the process dies: before or after a named query, or after the provider's answer or the acknowledgement."""

    when: str
    what: str

    def comes(self, when: str, what: str) -> None:
        """Die here if this is the point."""
        if self == Death(when, what):
            os.kill(os.getpid(), signal.SIGKILL)


NEVER = Death("never", "")


class Unpublished(Publisher):
    """Leaves every row to the test, which delivers the outbox itself."""

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = 0) -> None:
        """Do nothing."""


class MortalDatabase(Database):
    """A database that may be the last thing its process sees."""

    death = NEVER

    def run(self, name: str, /, **parameters: Any) -> list[Row]:
        self.death.comes(BEFORE, name)
        rows = super().run(name, **parameters)
        self.death.comes(AFTER, name)
        return rows


class MortalProvider:
    """A provider whose answer may be the last thing its process sees."""

    def __init__(self, provider: Provider, death: Death) -> None:
        self._provider = provider
        self._death = death

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def send(self, key: str, request: bytes) -> Outcome:
        outcome = self._provider.send(key, request)
        self._death.comes(AFTER, ANSWER)
        return outcome

    def lookup(self, key: str, request: bytes) -> Lookup:
        return self._provider.lookup(key, request)


def make_provider(name: str) -> Any:
    """Make a provider from the environment, as a step function does."""
    return {"payments": Payments, "storage": Storage, "webhook": Webhook, "email": Email}[name].from_environment()  # type: ignore[attr-defined]


def request_of(ctx: StepContext, provider: Any) -> dict[str, Any]:
    """Return what the one-effect handler asks of each provider."""
    if provider.name == "payments":
        return {"amount": 1530, "currency": "gbp", "payment_method": "pm_card_visa"}
    if provider.name == "storage":
        return {"object": f"{ctx.key}.pdf", "content_type": "application/pdf", "facts": {}, "content": b"%PDF \n\x00"}
    if provider.name == "webhook":
        return {"type": "test.done", "timestamp": ctx.accepted_at.isoformat(), "data": {"key": ctx.key}}
    letter = Letter("reader@example.com", "Reader", "Your invoice", "It is attached.", {"invoice.pdf": b"%PDF \n"})
    told: dict[str, Any] = provider.letter(letter, ctx.accepted_at)
    return told


def deliver(place: Place, due: Dispatch, death: Death) -> str:
    """Deliver one dispatch as Pub/Sub would, in this process, and return its outcome."""
    database = MortalDatabase(connector(place.url))
    database.death = death
    provider = MortalProvider(make_provider(place.provider), death)

    def handler(ctx: StepContext) -> dict[str, Any]:
        return ctx.effect("effect", provider, request_of(ctx, provider))

    pipeline = Pipeline.load(place.pipeline)
    outbox = Outbox(database, pipeline, Unpublished("test-project"))
    step = StepFunction(pipeline.step(due.type, due.step).function, handler, outbox, pipeline)
    return str(step.deliver(push(due), {"content-type": "application/json"}).outcome)


def _run(place: Place, due: Dispatch, death: Death, acknowledge: Connection) -> None:
    os.environ.update(place.environment)
    acknowledge.send(deliver(place, due, death))
    death.comes(AFTER, ACK)


class Attempt:
    """A started process; `end` and `kill` wait for it."""

    def __init__(self, place: Place, due: Dispatch, death: Death = NEVER) -> None:
        self._answers, acknowledge = _processes.Pipe(duplex=False)
        self._process: BaseProcess = _processes.Process(target=_run, args=(place, due, death, acknowledge))
        self._process.start()
        acknowledge.close()

    def kill(self) -> None:
        """SIGKILL from outside."""
        self._process.kill()
        assert self._ended() == -signal.SIGKILL

    def died(self) -> None:
        """Wait until it has killed itself."""
        assert self._ended() == -signal.SIGKILL

    def outcome(self) -> str:
        """Wait for its acknowledgement and its end."""
        assert self._answers.poll(PATIENCE), "no acknowledgement"
        outcome: str = self._answers.recv()
        assert self._ended() == 0
        return outcome

    def _ended(self) -> int | None:
        self._process.join(PATIENCE)
        code = self._process.exitcode
        self._answers.close()
        self._process.close()
        return code
