"""A pipeline of single steps, and how its time passes, for tests of effects at real providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

from shared import reconcile
from shared.database import Database
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch
from shared.step_context import StepContext
from shared.step_function import Delivery, Handler, StepFunction
from tests.database.kit import Kit
from tests.database.shop import push
from tests.effects.attempt import Unpublished

PIPELINE = """
version: 1
defaults: {transport: pubsub, attempts: 5, max_waits: 50, backoff: {min: 1s, max: 2s}, lease: 60s, timeout: 40s}
operations:
  test.single:
    steps:
      only: {function: test_only}
  test.line:
    steps:
      first: {function: test_first}
      second: {function: test_second, needs: [first]}
"""
HOUR = 3600


class EffectsKit(Kit):
    """Operations whose steps are delivered in this process, or by the test in others, while time is moved by hand."""

    def __init__(self, database: Database, url: str, folder: Path) -> None:
        self.path = folder / "pipeline.yaml"
        self.path.write_text(PIPELINE)
        super().__init__(database, Pipeline.load(self.path), url)
        self.outbox = Outbox(database, self.pipeline, Unpublished("test-project"))

    def pass_time(self, seconds: int = HOUR) -> None:
        """Move everything that the database remembers of time into the past, as if this time had passed."""
        ago = f"interval '{seconds} seconds'"
        self.query(
            f"UPDATE steps SET lease_expires_at = lease_expires_at - {ago}, available_at = available_at - {ago}, "
            f"finished_at = finished_at - {ago}, attempt_started_at = attempt_started_at - {ago}"
        )
        self.query(
            f"UPDATE effects SET send_deadline = send_deadline - {ago}, key_expires_at = key_expires_at - {ago}, "
            f"unknown_since = unknown_since - {ago}"
        )

    def reconcile(self) -> None:
        """Let reconcile run once."""
        reconcile.run_once(self.outbox, self.pipeline)

    def due(self, operation_id: UUID) -> Dispatch:
        """The one dispatch of the operation, which is made due."""
        self.query(f"UPDATE steps SET available_at = now() WHERE operation_id = '{operation_id}' AND state = 'queued'")
        (due,) = self.dispatches(operation_id)
        return due

    def deliver(self, operation_id: UUID, handler: Handler, database: Database | None = None) -> Delivery:
        """Deliver the operation's one due step as Pub/Sub would."""
        due = self.due(operation_id)
        outbox = Outbox(database, self.pipeline, Unpublished("test-project")) if database else self.outbox
        step = StepFunction(self.pipeline.step(due.type, due.step).function, handler, outbox, self.pipeline)
        return step.deliver(push(due), {"content-type": "application/json"})

    def effect(self, operation_id: UUID, name: str | None = None) -> dict[str, Any]:
        """The current ledger row of the operation's effect."""
        columns = "state, permits, unaccounted, lookups, evidence, reason, generation, provider_key"
        named = f"AND name = '{name}'" if name else ""
        rows = self.query(
            f"SELECT {columns} FROM effects WHERE operation_id = '{operation_id}' {named} ORDER BY generation DESC"
        )
        return dict(zip(columns.split(", "), rows[0], strict=True))


def one_effect(provider: Any, request: dict[str, Any]) -> Handler:
    """Return a handler of one effect."""

    def handler(ctx: StepContext) -> dict[str, Any]:
        return ctx.effect("effect", provider, request)

    return handler
