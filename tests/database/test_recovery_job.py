"""Recovery mode from the migration job's container, by the environment's settings."""

from __future__ import annotations

import pytest

from shared import recovery_job
from shared.database import Database


def test_begin_and_end(database: Database, database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", database_url)
    assert recovery_job.main(["begin"]) == 0
    assert recovery_job.main(["begin"]) == 1, "it is on already"
    assert recovery_job.main(["end"]) == 0
    assert recovery_job.main(["end"]) == 0, "it was not on, as asked"


@pytest.mark.parametrize("arguments", [[], ["start"], ["begin", "now"]])
def test_a_wrong_call_changes_nothing(arguments: list[str]) -> None:
    assert recovery_job.main(arguments) == 2


def test_a_database_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://nobody@127.0.0.1:1/none")
    assert recovery_job.main(["begin"]) == 1
