"""Intake core: one operation accepted with its identity, its steps and the outbox row of its first step."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import uuid4

from benchmarks import floor
from benchmarks.bench import CLIENTS, SQL, TENANT, TRACEPARENT, TYPE, Bench, timed
from benchmarks.measure import Aim, Comparison, Contender
from shared import identity, ijson, operations
from shared.outbox import WRITER_LEASE
from shared.pipeline import Limits

PRESENT = 2_000  # operations before each sample: a plan made for an empty table would be no plan of a real one


@contextlib.contextmanager
def comparisons(bench: Bench) -> Iterator[list[Comparison]]:
    """Give the comparison at one client and at four."""
    yield [_comparison(bench, clients) for clients in (1, CLIENTS)]


def _comparison(bench: Bench, clients: int) -> Comparison:
    def contender(name: str, role: Any, run: Any) -> Contender:
        return Contender(name, role, lambda count: run(bench, clients, count))

    contenders = [
        contender("execute, execute, commit (two rows)", "usual", _usual),
        contender("pgbench, the same statement", "floor", _floor),
        contender("operations.accept", "ours", _accept),
        contender("… in tenants with a limit, fifty in flight", "other", _limited),
        contender("… its statement alone, parameters ready", "other", _statement),
    ]
    aim = Aim("floor", 0.7) if clients == 1 else None
    return Comparison(f"intake-{clients}", f"intake core, {clients} at once", contenders, aim)


def _accept(bench: Bench, clients: int, count: int) -> float:
    def work(indexes: range) -> None:
        for _ in indexes:
            operations.accept(bench.database, bench.pipeline, TENANT, _key(), bench.request, TRACEPARENT)

    return _sample(bench, clients, count, work, "count_accepted")


def _limited(bench: Bench, clients: int, count: int) -> float:
    """Accept in one tenant after the other, a hundred in each, so that fifty are in flight on average."""
    pipeline = replace(bench.pipeline, limits=Limits(200))

    def work(indexes: range) -> None:
        for index in indexes:
            tenant = f"{TENANT}-{index // 100}"
            operations.accept(bench.database, pipeline, tenant, _key(), bench.request, TRACEPARENT)

    return _sample(bench, clients, count, work, "count_accepted")


def _statement(bench: Bench, clients: int, count: int) -> float:
    parameters = _parameters(bench)

    def work(indexes: range) -> None:
        for _ in indexes:
            bench.database.run("accept_operation", **{**parameters, "key": _key()})

    return _sample(bench, clients, count, work, "count_accepted")


def _floor(bench: Bench, clients: int, count: int) -> float:
    def text(value: Any) -> str:
        if isinstance(value, list):
            return "{" + ",".join(json.dumps(item) for item in value) + "}"
        return "\\x" + value.hex() if isinstance(value, bytes) else str(value)

    parameters = _parameters(bench)
    nulls = {f":{name}": "NULL" for name, value in parameters.items() if value is None}
    variables = {name: text(value) for name, value in parameters.items() if value is not None and name != "key"}
    script = ["\\set key random(1, 9000000000000000000)", floor.statement("accept_operation", nulls)]
    bench.prepare(PRESENT)
    seconds = floor.run(bench, clients, count, script, variables)
    _check(bench.sql("count_accepted") - PRESENT, count)
    return seconds


def _usual(bench: Bench, clients: int, count: int) -> float:
    given = bench.request.input

    def work(indexes: range) -> None:
        with contextlib.closing(bench.dbapi()) as connection:
            cursor = connection.cursor()
            for _ in indexes:
                operation_id = str(uuid4())
                row = (operation_id, TENANT, TYPE, _key(), json.dumps(given))
                cursor.execute(SQL["usual_accept_operation"], row)
                cursor.execute(SQL["usual_accept_outbox"], (operation_id, "record"))
                connection.commit()

    return _sample(bench, clients, count, work, "usual_count_accepted")


def _sample(bench: Bench, clients: int, count: int, work: Any, check: str) -> float:
    (bench.prepare_usual if check.startswith("usual") else bench.prepare)(PRESENT)
    seconds = timed(clients, count, work)
    _check(bench.sql(check) - PRESENT, count)
    return seconds


def _key() -> str:
    """A key as a caller makes it: random, as pgbench's are."""
    return str(random.getrandbits(63))


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} operations were accepted, not {expected}")


def _parameters(bench: Bench) -> dict[str, Any]:
    """What operations.accept gives to its statement, made once."""
    plan = list(bench.pipeline.operation(TYPE).steps.values())
    return {
        "tenant": TENANT,
        "type": TYPE,
        "traceparent": TRACEPARENT,
        "fingerprint": identity.fingerprint(bench.request),
        "fingerprint_version": identity.FINGERPRINT_VERSION,
        "input": ijson.canonical(bench.request.input).decode(),
        "not_before": None,
        "deadline": None,
        "ordering_key": None,
        "steps": [step.name for step in plan],
        "needs": [",".join(step.needs) for step in plan],
        "needs_left": [len(step.needs) for step in plan],
        "first_steps": 1,
        "in_flight": None,
        "writer_lease": WRITER_LEASE,
    }
