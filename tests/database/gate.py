"""Operations that wait to be admitted: a pipeline with a limit, a publisher that hands everything to the test."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from shared import admission, operations, steps
from shared.database import Database
from shared.identity import Options
from shared.outbox import Outbox
from shared.pipeline import Limits, Pipeline
from shared.publisher import Dispatch, Publisher
from tests.database.kit import PIPELINE, Kit

KEY = Options(ordering_key="account-7")
GOING_ON = "  test.going:\n    ordering: {review: go_on}\n    steps:\n      only: {function: test_going}\n"


class _Queued(Publisher):
    """Publishes to a queue of the test's own."""

    def __init__(self, published: queue.Queue[Dispatch]) -> None:
        super().__init__("test-project")
        self._published = published

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = 0) -> None:
        """Put them into the queue."""
        for dispatch in dispatches:
            self._published.put(dispatch)


class Gate(Kit):
    """Operations, what was published of them, and what admits them."""

    def __init__(self, database: Database, url: str, folder: Path) -> None:
        path = folder / "pipeline.yaml"
        path.write_text(PIPELINE + GOING_ON)
        super().__init__(database, Pipeline.load(path), url)
        self.published: queue.Queue[Dispatch] = queue.Queue()
        self.outbox = Outbox(database, self.pipeline, _Queued(self.published))

    def limit(self, in_flight: int) -> None:
        """Let a tenant have so many operations in flight."""
        self.pipeline = replace(self.pipeline, limits=Limits(in_flight))

    def submit(
        self, options: Options | None = None, kind: str = "test.single", tenant: str = "shop"
    ) -> operations.Accepted:
        """Do what intake does with a submission."""
        accepted = self.accept(kind, tenant=tenant, options=options)
        self.outbox.publish_at_once(accepted.due)
        if accepted.waits:
            self.admit(tenant)
        return accepted

    def admit(self, tenant: str = "shop") -> int:
        return admission.admit(self.outbox, self.pipeline, tenant)

    def finish(self, operation_id: UUID) -> None:
        """Do what a step function does with the operation's due step: run it, and admit what may start after it."""
        (due,) = self.dispatches(operation_id)
        steps.succeed(self.database, self.claimed(due), None)
        self.admit()

    def stop(self, operation_id: UUID) -> None:
        """Do what intake does with a cancel."""
        operations.cancel(self.database, "shop", operation_id)
        self.admit()

    @property
    def waiting(self) -> list[UUID]:
        """The operations that wait to be admitted, in order of acceptance."""
        rows = self.query("SELECT id FROM operations WHERE admitted_at IS NULL AND state = 'requested' ORDER BY id")
        return [row[0] for row in rows]

    @property
    def queued(self) -> list[UUID]:
        """The operations with an outbox row, in order of acceptance."""
        return [row[0] for row in self.query("SELECT DISTINCT operation_id FROM outbox ORDER BY operation_id")]
