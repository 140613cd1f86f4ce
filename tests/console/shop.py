"""Operations that went wrong in the ways that a person decides about."""

from __future__ import annotations

import itertools
from datetime import timedelta
from pathlib import Path
from uuid import UUID

from shared import steps
from shared.database import Database
from shared.pipeline import Pipeline
from tests.effects.till import Bank, Till

PIPELINE = """
version: 1
defaults: {transport: pubsub, attempts: 5, max_waits: 50, backoff: {min: 1s, max: 2s}, lease: 60s, timeout: 40s}
operations:
  test.single:
    sensitive: {input: [secret, customer.name], results: [secret]}
    steps:
      only: {function: test_only}
  test.line:
    steps:
      first: {function: test_first, providers: [payments]}
      second: {function: test_second, needs: [first]}
"""
_numbers = itertools.count()


class Shop(Till):
    """A till whose pipeline hides something, and the moves that these tests need."""

    def __init__(self, database: Database, url: str, folder: Path, bank: Bank) -> None:
        super().__init__(database, url, folder, bank)
        self.path.write_text(PIPELINE)
        self.pipeline = self.outbox.pipeline = Pipeline.load(self.path)

    soon = timedelta()

    def failed(self, *, kind: str = "TestError", error: str = "for a test", key: str | None = None) -> UUID:
        """An operation whose one step failed before it did anything outside."""
        return self.rested(steps.Outcome.FAILED, kind, error, key)

    def rested(self, outcome: steps.Outcome, kind: str, error: str, key: str | None = None) -> UUID:
        accepted = self.accept(key=key or f"rested-{next(_numbers)}")
        held = self.claimed(accepted.due[0])
        steps.fail(self.database, held, outcome, kind, error, timedelta())
        return accepted.operation_id

    def incompatible(self, error: str = "for a test") -> UUID:
        """An operation whose one step is exhausted, with a letter, before it did anything outside."""
        return self.rested(steps.Outcome.INCOMPATIBLE, "TestError", error, None)

    def unresolved(self) -> UUID:
        """An operation whose payment may have been made: it was not."""
        operation_id = self.accept(key=f"unresolved-{next(_numbers)}").operation_id
        self.next(*["drop_before_commit"] * 5)
        assert [self.run(operation_id) for _ in range(5)][-1] == "unresolved"
        return operation_id

    def declined(self) -> UUID:
        """An operation whose payment was refused for good."""
        operation_id = self.accept(key=f"declined-{next(_numbers)}").operation_id
        self.next("decline")
        assert self.run(operation_id) == "failed"
        return operation_id

    def letter_of(self, operation_id: UUID) -> str:
        return str(self.value(f"SELECT id FROM dead_letters WHERE operation_id = '{operation_id}'"))

    def audit(self, operation_id: UUID) -> list[list[object]]:
        return self.query(
            f"SELECT actor, action, mode, reason FROM reviews WHERE operation_id = '{operation_id}' ORDER BY id"
        )
