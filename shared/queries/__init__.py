"""Named SQL statements: every `.sql` file here, each statement under a `-- name:` line with a description line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from shared.errors import EchoproofError

NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


class QueryFileError(EchoproofError, ValueError):
    """A file of named queries is not usable."""


class UnknownQueryError(EchoproofError):
    """No query of this name stands in shared/queries."""


@dataclass(frozen=True)
class Query:
    """One named statement: its name, what it does in a sentence, and its SQL with `:name` placeholders."""

    name: str
    description: str
    sql: str


def parse(text: str) -> list[Query]:
    """Split a file into its named statements; raises QueryFileError for one without a description or without SQL."""
    parts = NAME.split(text)
    return [_query(name, body) for name, body in zip(parts[1::2], parts[2::2], strict=True)]


def _query(name: str, body: str) -> Query:
    lines = body.strip().splitlines()
    description = lines[0].removeprefix("-- ") if lines and lines[0].startswith("-- ") else ""
    sql = "\n".join(line for line in lines if not line.lstrip().startswith("--")).strip().removesuffix(";")
    if not description or not sql:
        raise QueryFileError(f"query {name}: a description line (`-- …`) and one statement are needed")
    return Query(name, description, sql)


@cache
def load() -> dict[str, Query]:
    """Return every named statement of this folder by name; raises QueryFileError when a name is used twice."""
    queries: dict[str, Query] = {}
    for path in sorted(Path(__file__).parent.glob("*.sql")):
        for query in parse(path.read_text()):
            if query.name in queries:
                raise QueryFileError(f"{path.name}: the query name {query.name} is used twice")
            queries[query.name] = query
    return queries


def get(name: str) -> Query:
    """Return the statement of this name; raises UnknownQueryError."""
    try:
        return load()[name]
    except KeyError:
        raise UnknownQueryError(f"no query {name} stands in shared/queries/*.sql") from None
