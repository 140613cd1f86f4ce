"""At a hundred thousand operations and five thousand dead letters each page reads indexes, no large table whole."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from shared import queries
from shared.database import Connection, Database, connector
from shared.pipeline import Pipeline
from shared.review import plan, pulse, reading
from tests.console.scenes import PIPELINE_FILE, fill

OPERATIONS, BAD, HOURS = 100_000, 5_000, 24 * 30.0
BIG = {"operations", "steps", "attempts", "effects", "dead_letters", "identities"}
# What pages ask with; each is also planned without knowing the values.
EXPLAINED: dict[str, dict[str, Any]] = {
    "list_dead_letters": {"state": "open", "cause": None, "tenant": None, "type": None, "step": None},
    "list_all_dead_letters": {"cause": None, "tenant": None, "type": None, "step": None},
    "count_open_dead_letters": {},
    "search_operations": {"state": None, "type": None},
    "search_operations_of_key": {"key": "order-536370", "tenant": None, "state": None, "type": None},
    "search_operations_of_tenant": {"tenant": "shop", "state": None, "type": None},
    "search_operations_unfinished": {"tenant": "shop", "state": "needs_review", "type": None},
    "search_operations_ended_badly": {"state": "needs_review", "tenant": None, "type": None},
    "read_operation_whole": {"operation_id": None},
    "read_dead_letter": {"dead_letter_id": None},
    "list_reviews_of_letter": {"dead_letter_id": None},
    "lock_step_for_review": {"operation_id": None, "step": "collect"},
    "lock_effects_for_review": {"operation_id": None, "step": "collect"},
    "attempts_by_minute": {"minutes": 60},
    "latency_lately": {"minutes": 60},
    "count_unfinished": {},
    "backlog_by_step": {},
    "effects_pulse": {},
}  # fmt: skip
MORE: list[tuple[str, dict[str, Any]]] = [
    ("list_dead_letters", {"state": "open", "cause": "unresolved", "tenant": "branch", "type": None, "step": None}),
    ("list_dead_letters", {"state": "closed", "cause": None, "tenant": None, "type": "report.generate", "step": None}),
    ("search_operations", {"state": "running", "type": "invoice.generate"}),
    ("search_operations_of_tenant", {"tenant": "nobody", "state": "succeeded", "type": None}),
]


@pytest.fixture(scope="module")
def full(postgres_scene: str) -> str:
    fill(postgres_scene, OPERATIONS, BAD, HOURS)
    return postgres_scene


def whole_tables(url: str, name: str, values: dict[str, Any], mode: str) -> set[str]:
    """Return the large tables that a statement reads from end to end, as a session plans it that prepares it."""
    raw = Connection(connector(url)()).raw
    found: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("Node Type") == "Seq Scan":
                found.add(node["Relation Name"])
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    sql = queries.get(name).sql
    every = {"cursor": None, "page_size": 51} | values
    given = {key: value for key, value in every.items() if f":{key}" in sql}
    raw.run(f"SET plan_cache_mode = {mode}")
    walk(raw.run(f"EXPLAIN (FORMAT JSON) {sql}", **given)[0][0])
    raw.close()
    return found & BIG


def test_each_pages_statements_read_indexes(full: str) -> None:
    raw = Connection(connector(full)()).raw
    operation_id = raw.run("SELECT operation_id FROM steps WHERE state = 'unresolved' LIMIT 1")[0][0]
    letter = raw.run("SELECT id FROM dead_letters LIMIT 1")[0][0]
    raw.close()
    ids = {"operation_id": operation_id, "dead_letter_id": letter}
    wrong = {}
    for name, values in [*EXPLAINED.items(), *MORE]:
        given = {key: ids.get(key, value) for key, value in values.items()}
        for mode in ("force_custom_plan", "force_generic_plan"):
            if whole := whole_tables(full, name, given, mode):
                wrong[name, str(values), mode] = whole
    assert wrong == {}


def test_the_pages_read_what_is_there(full: str) -> None:
    """Every search finds the same as the plain one, whatever statement it begins with."""
    database, pipeline = Database(connector(full), size=1), Pipeline.load(PIPELINE_FILE)
    assert len(reading.operations(database, state="needs_review").items) == reading.PAGE_SIZE
    for asked in ({"tenant": "shop"}, {"state": "needs_review"}, {"tenant": "branch", "state": "needs_review"},
                  {"state": "running"}, {"tenant": "shop", "state": "running"}, {"state": "succeeded"}):  # fmt: skip
        found = reading.operations(database, **asked)  # type: ignore[arg-type]
        assert found.items, asked
        for row in found.items:
            assert {name: getattr(row, name) for name in asked} == asked
        assert [row.id for row in found.items] == sorted((row.id for row in found.items), reverse=True)
    letter = reading.letters(database, cause="unresolved", tenant="branch").items[0]
    assert plan.dry_run(database, pipeline, UUID(str(letter.operation_id)), str(letter.step)).effects
    taken = pulse.take(database, pipeline)
    assert sum(letters.open for letters in taken.letters) > BAD - 10
    database.close()
