"""A database and an object server for the tests of effects, and the table of interruption points at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from local.objects import ObjectServer
from shared.database import Database
from tests.effects.kit import EffectsKit
from tests.effects.table import OBSERVED, written
from tests.effects.till import Till


@pytest.fixture
def kit(database: Database, database_url: str, tmp_path: Path) -> Iterator[EffectsKit]:
    kit = EffectsKit(database, database_url, tmp_path)
    yield kit
    kit.close()


@pytest.fixture
def till(database: Database, database_url: str, tmp_path: Path) -> Iterator[Till]:
    till = Till(database, database_url, tmp_path)
    yield till
    till.close()


@pytest.fixture(scope="session")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("objects")) as server:
        yield server


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was observed at each interruption point."""
    reports = [report for outcome in ("passed", "failed") for report in terminalreporter.stats.get(outcome, ())]
    observed = [value for report in reports for name, value in report.user_properties if name == OBSERVED]
    if observed:
        terminalreporter.section("an effect, and a process that dies")
        for line in written(observed):
            terminalreporter.write_line(line)
