"""A small pipeline and the moves of a step, for tests that look at the database."""

from __future__ import annotations

import itertools
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from shared import operations, steps
from shared.database import Connection, Database, connector
from shared.duties import Duty
from shared.identity import Options, Request
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

PIPELINE = """
version: 1
defaults: {transport: pubsub, attempts: 3, max_waits: 5, backoff: {min: 1s, max: 2s}, lease: 60s, timeout: 40s}
operations:
  test.single:
    steps:
      only: {function: test_only}
  test.twin:
    steps:
      only: {function: test_twin}
  test.line:
    steps:
      first: {function: test_first}
      second: {function: test_second, needs: [first]}
  test.fan:
    steps:
      left: {function: test_left}
      right: {function: test_right}
      join: {function: test_join, needs: [left, right]}
  test.paid:
    steps:
      only: {function: test_paid, providers: [till]}
  test.dated:
    steps:
      only: {function: test_dated, deadline: 60s}
"""
_keys = itertools.count()


def drained(duty: Duty, outbox: Outbox, pipeline: Pipeline, batch: int = 200) -> Counter[str]:
    """Run one duty of reconcile to its end and return what it moved."""
    moved: Counter[str] = Counter()
    for counts in duty(outbox, pipeline, batch):
        moved.update(counts)
    return moved


def pipeline_in(folder: Path) -> Pipeline:
    """Write the test pipeline into a folder and load it."""
    path = folder / "pipeline.yaml"
    path.write_text(PIPELINE)
    return Pipeline.load(path)


class Kit:
    """The moves of operations and steps on one database."""

    def __init__(self, database: Database, pipeline: Pipeline, url: str) -> None:
        self.database = database
        self.pipeline = pipeline
        self.url = url
        self._raw = Connection(connector(url)())

    def close(self) -> None:
        self._raw.close()

    def accept(
        self,
        operation_type: str = "test.single",
        given: dict[str, Any] | None = None,
        *,
        key: str | None = None,
        tenant: str = "shop",
        options: Options | None = None,
    ) -> operations.Accepted:
        request = Request(operation_type, given if given is not None else {"n": 1}, options or Options())
        return operations.accept(self.database, self.pipeline, tenant, key or f"k-{next(_keys)}", request)

    def start(self, operation_type: str = "test.single") -> tuple[UUID, steps.Claim]:
        """Accept an operation and claim its first step."""
        accepted = self.accept(operation_type)
        return accepted.operation_id, self.claimed(accepted.due[0])

    def claim(self, dispatch: Dispatch) -> steps.Claim | steps.NotClaimed:
        return steps.claim(self.database, self.pipeline.step(dispatch.type, dispatch.step), dispatch)

    def claimed(self, dispatch: Dispatch) -> steps.Claim:
        held = self.claim(dispatch)
        assert isinstance(held, steps.Claim), held
        return held

    def refusal(self, dispatch: Dispatch) -> steps.Refusal:
        refused = self.claim(dispatch)
        assert isinstance(refused, steps.NotClaimed), refused
        return refused.refusal

    def fail(self, held: steps.Claim, outcome: steps.Outcome = steps.Outcome.RETRY, delay: float = 0) -> str:
        return steps.fail(self.database, held, outcome, "TestError", "for a test", timedelta(seconds=delay))[0]

    def query(self, sql: str) -> list[list[Any]]:
        """Run a statement of a test's own and return its rows."""
        with self._raw._translated():
            return list(self._raw.raw.run(sql) or [])

    def value(self, sql: str) -> Any:
        return self.query(sql)[0][0]

    def expire_leases(self) -> None:
        """Let every lease run out, as if its holder had died and the time had passed."""
        self.query("UPDATE steps SET lease_expires_at = now() - interval '1 second' WHERE state = 'running'")

    def states(self, operation_id: UUID) -> dict[str, str]:
        rows = self.query(f"SELECT step, state FROM steps WHERE operation_id = '{operation_id}' ORDER BY step")
        return {str(step): str(state) for step, state in rows}

    def operation_state(self, operation_id: UUID) -> str:
        return str(self.value(f"SELECT state FROM operations WHERE id = '{operation_id}'"))

    def dispatches(self, operation_id: UUID) -> list[Dispatch]:
        """The outbox rows of an operation, as messages."""
        rows = self.query(
            f"SELECT operation_id, type, step, dispatch FROM outbox WHERE operation_id = '{operation_id}' ORDER BY step"
        )
        return [Dispatch(*row) for row in rows]

    def owners(self) -> list[list[Any]]:
        """Unfinished steps with how many owners each has: an outbox row, a lease, an open review row, or a need
        (a step's, or an operation's for its admission)."""
        return self.query("""
            SELECT s.operation_id, s.step, s.state,
                (x.operation_id IS NOT NULL)::int + (s.state = 'running')::int + (d.id IS NOT NULL)::int
                    + (s.state = 'waiting' AND (s.needs_left > 0 OR o.admitted_at IS NULL))::int AS owners
            FROM steps s
            JOIN operations o ON o.id = s.operation_id
            LEFT JOIN outbox x USING (operation_id, step)
            LEFT JOIN dead_letters d ON d.operation_id = s.operation_id AND d.step = s.step
                AND d.generation = s.generation AND d.state = 'open'
            WHERE s.state NOT IN ('succeeded', 'failed', 'cancelled', 'discarded')
        """)

    def check_invariant(self) -> None:
        """Every unfinished step has exactly one owner, and no finished one has an outbox row."""
        assert [row for row in self.owners() if row[3] != 1] == []
        assert (
            self.value(
                "SELECT count(*) FROM outbox x JOIN steps s USING (operation_id, step) "
                "WHERE s.state <> 'queued' OR s.dispatch <> x.dispatch"
            )
            == 0
        )
