from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.database import Database
from tests.database.kit import Kit, pipeline_in


@pytest.fixture
def kit(database: Database, database_url: str, tmp_path: Path) -> Iterator[Kit]:
    kit = Kit(database, pipeline_in(tmp_path), database_url)
    yield kit
    kit.close()
