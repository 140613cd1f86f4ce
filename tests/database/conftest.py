from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.database import Database
from tests.database.gate import Gate
from tests.database.kit import Kit, pipeline_in
from tests.database.line import Line
from tests.effects.till import Till


@pytest.fixture
def kit(database: Database, database_url: str, tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(database, pipeline_in(tmp_path), database_url)
    yield kit
    kit.close()


@pytest.fixture
def line(database: Database, database_url: str, tmp_path: Path) -> Iterator[Line]:
    line = Line(database, database_url, tmp_path)
    yield line
    line.close()


@pytest.fixture
def till(database: Database, database_url: str, tmp_path: Path) -> Iterator[Till]:
    till = Till(database, database_url, tmp_path)
    yield till
    till.close()


@pytest.fixture
def gate(database: Database, database_url: str, tmp_path: Path) -> Iterator[Gate]:
    gate = Gate(database, database_url, tmp_path)
    yield gate
    gate.close()
