"""The statements that many callers wait for, and the sweeps, use their indexes on tables that have grown."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from shared import queries
from tests.database.gate import Gate

FINISHED, FLYING, WAITING = 40_000, 100, 3_000
# A tenant with a long history, some operations in flight and many that wait, half of them under fifty keys.
FILL = f"""
INSERT INTO operations (id, tenant, type, key, input, state, steps_left, steps_alive, accepted_at, admitted_at,
    finished_at, ordering_key, position, deadline)
SELECT uuidv7(-make_interval(mins => 60000 - n)), 'shop', 'test.single', 'k-' || n, '{{}}',
    CASE WHEN n <= {FINISHED} THEN 'succeeded' ELSE 'requested' END, 0, 0, now() - make_interval(mins => 60000 - n),
    CASE WHEN n <= {FINISHED + FLYING} THEN now() END,
    CASE WHEN n <= {FINISHED} THEN now() - make_interval(mins => 59000 - n) END,
    CASE WHEN n % 2 = 0 THEN 'account-' || n % 50 END, CASE WHEN n % 2 = 0 THEN n END,
    CASE WHEN n % 100 = 0 THEN now() + make_interval(mins => n - {FINISHED}) END
FROM generate_series(1, {FINISHED + FLYING + WAITING}) AS n;
INSERT INTO steps (operation_id, step, state, needs_left, dispatch, available_at, finished_at)
SELECT id, 'only', CASE WHEN finished_at IS NOT NULL THEN 'succeeded' WHEN admitted_at IS NULL THEN 'waiting'
        ELSE 'queued' END, 0, 1, now(), finished_at
FROM operations;
INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after)
SELECT operation_id, 'only', 'test.single', 1, now(), now() FROM steps WHERE state = 'queued';
INSERT INTO ordering_keys (tenant, ordering_key, tail)
SELECT tenant, ordering_key, max(position) FROM operations WHERE ordering_key IS NOT NULL GROUP BY 1, 2;
INSERT INTO identities (tenant, type, key, operation_id, fingerprint, fingerprint_version, accepted_at)
SELECT tenant, type, key, id, sha256(''), 1, accepted_at FROM operations;
"""
VALUES: dict[str, str] = {
    "tenant": "'shop'",
    "in_flight": "200",
    "batch": "100",
    "going_on": "'{}'",
    "ordering_keys": "'{account-2,account-4}'",
    "writer_lease": "60",
    "operation_types": "'{test.single}'",
    "steps": "'{only}'",
    "deadlines": "'{60}'",
    "attempts": "'{3}'",
    "kept": "2000000",
    "kept_after": "1000",
}
# Where two indexes serve the planner chooses: either will do.
ORDER = "operations_waiting_in_order|operations_next_in_order"
EXPECTED = {
    "may_admit": ["operations_waiting", ORDER, "operations_holding_key"],
    "lock_free_keys": [ORDER, "operations_holding_key"],
    "admit_operations": ["operations_waiting", "operations_next_in_order", "operations_holding_key"],
    "list_waiting_tenants": ["operations_waiting", ORDER],
    "admit_overdue_operations": ["operations_by_deadline"],
    "end_overdue_steps": ["operations_by_deadline", "steps_pkey"],
    "queue_startable_steps": ["steps_startable"],
    "move_expired_leases": ["steps_by_lease"],
    "prune_operations": ["operations_pkey"],
    "prune_identities": ["identities_operation_id_key"],
}
FUNCTIONS = {
    "SELECT FROM operations AS o WHERE o.tenant = 'shop' AND o.admitted_at IS NOT NULL "
    "AND o.state IN ('requested', 'running') AND o.starts_at <= now() LIMIT 200": "operations_in_flight",
    "SELECT FROM operations AS o WHERE o.tenant = 'shop' AND o.admitted_at IS NULL AND o.state = 'requested' "
    "AND o.ordering_key IS NULL AND o.starts_at <= now() LIMIT 1": "operations_waiting",
}
BIG = {"operations", "steps", "identities"}  # tables that grow with time


def plan(gate: Gate, sql: str) -> tuple[set[str], set[str]]:
    """Return the indexes that a statement uses and the tables that it reads whole."""
    found = gate.query(f"EXPLAIN (FORMAT JSON) {sql}")[0][0]
    indexes: set[str] = set()
    whole: set[str] = set()

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            indexes.update({node["Index Name"]} if "Index Name" in node else ())
            whole.update({node["Relation Name"]} if node.get("Node Type") == "Seq Scan" else ())
            for child in node.values():
                walk(child)
        elif isinstance(node, list):
            for child in node:
                walk(child)

    walk(found)
    return indexes, whole


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """Each statement with values in the place of its parameters."""
    return {
        name: re.sub(r"(?<!:):([a-z_]+)", lambda match: VALUES[match[1]], queries.get(name).sql) for name in EXPECTED
    }


def test_hot_statements_and_sweeps_use_their_indexes(gate: Gate, texts: dict[str, str]) -> None:
    for part in FILL.split(";\n"):
        if part.strip():
            gate.query(part)
    gate.query("ANALYZE")
    wrong = {}
    for name, expected in EXPECTED.items():
        indexes, whole = plan(gate, texts[name])
        missing = [index for index in expected if not indexes & set(index.split("|"))]
        if missing or whole & BIG:
            wrong[name] = (missing, whole & BIG)
    for sql, index in FUNCTIONS.items():
        indexes, whole = plan(gate, sql)
        if index not in indexes or whole:
            wrong[sql] = ([index], whole)
    assert wrong == {}


def test_the_next_of_a_long_line_is_found_without_a_look_for_each_that_waits(gate: Gate, texts: dict[str, str]) -> None:
    for part in FILL.replace("n % 50", "7").split(";\n"):
        if part.strip():
            gate.query(part)
    gate.query("UPDATE operations SET state = 'succeeded', finished_at = now() WHERE admitted_at IS NOT NULL")
    for analyze in ("", "ANALYZE"):
        if analyze:
            gate.query(analyze)
        found = gate.query(f"EXPLAIN (ANALYZE, FORMAT JSON) {texts['lock_free_keys']}")[0][0]
        assert '"Actual Rows": 1500' in json.dumps(found).replace("1500.0", "1500")  # it has read the line
        assert max(loops(found)) == 1


def loops(node: Any) -> list[float]:
    """Return how often each part of a plan ran."""
    if isinstance(node, dict):
        own = [node["Actual Loops"]] if "Actual Loops" in node else []
        return own + [number for child in node.values() for number in loops(child)]
    return [number for child in node for number in loops(child)] if isinstance(node, list) else []
