"""A database that looks as if the pipeline had been at work for some time: for pictures, plans and the benchmark."""

from __future__ import annotations

from pathlib import Path

from shared import queries
from shared.database import Connection, connector

SQL = {query.name: query.sql for query in queries.parse(Path(__file__).with_name("scenes.sql").read_text())}
ROOT = Path(__file__).resolve().parents[2]
PIPELINE_FILE = ROOT / "pipeline.yaml"


def fill(url: str, count: int, bad: int, hours: float) -> None:
    """Put `count` operations of the real pipeline into a database, `bad` of which need a person."""
    values = {"count": count, "bad": bad, "hours": hours}
    raw = Connection(connector(url)()).raw
    raw.run("SET statement_timeout = '5min'")
    for sql in SQL.values():
        named = {name: value for name, value in values.items() if f":{name}" in sql}
        raw.run(sql, **named)
    raw.run("VACUUM ANALYZE")
    raw.close()
