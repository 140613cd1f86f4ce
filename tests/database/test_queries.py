"""Every named query is valid SQL on the migrated schema, described, and used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared import queries
from shared.database import Connection, connector

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", sorted(queries.load()))
def test_every_query_can_be_prepared(database_url: str, name: str) -> None:
    connection = Connection(connector(database_url)())
    connection._prepare(name)
    connection.close()


def test_every_query_is_used() -> None:
    code = "".join(
        path.read_text() for folder in ("shared", "local", "functions") for path in (ROOT / folder).rglob("*.py")
    )
    assert [name for name in queries.load() if not re.search(rf'"{name}"', code)] == []


def test_no_sql_stands_in_python() -> None:
    statement = re.compile(r"\b(SELECT .* FROM|INSERT INTO|DELETE FROM|UPDATE \w+ SET)\b")
    found = [
        str(path.relative_to(ROOT))
        for folder in ("shared", "functions")
        for path in (ROOT / folder).rglob("*.py")
        if statement.search(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize("text", ["-- name: a\nSELECT 1;", "-- name: a\n-- only words\n"])
def test_a_query_without_description_or_statement_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="query a"):
        queries.parse(text)
