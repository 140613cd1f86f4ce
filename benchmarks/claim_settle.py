"""Claim and settle: a step is claimed for its message and succeeds, which makes the next step due."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from benchmarks import floor
from benchmarks.bench import (
    CLIENTS,
    FIRST_NUMBER,
    ID_PREFIX,
    SQL,
    TRACEPARENT,
    TYPE,
    Bench,
    first_dispatch,
    operation_id,
    timed,
)
from benchmarks.measure import Aim, Comparison, Contender
from shared import ijson, steps
from shared.outbox import WRITER_LEASE

RESULT = {"invoice": "INV-000001", "net_pence": 13912}
_ID = "CAST(:operation_id AS uuid)"


@contextlib.contextmanager
def comparisons(bench: Bench) -> Iterator[list[Comparison]]:
    """Give the comparison at one client and at four."""
    yield [_comparison(bench, clients) for clients in (1, CLIENTS)]


def _comparison(bench: Bench, clients: int) -> Comparison:
    contenders = [
        Contender("six statements, two commits", "usual", lambda count: _usual(bench, clients, count)),
        Contender("pgbench, the same two statements", "floor", lambda count: _floor(bench, clients, count)),
        Contender("steps.claim, steps.succeed", "ours", lambda count: _ours(bench, clients, count)),
    ]
    aim = Aim("floor", 0.6) if clients == 1 else None
    return Comparison(f"steps-{clients}", f"claim + settle, {clients} at once", contenders, aim)


def _ours(bench: Bench, clients: int, count: int) -> float:
    policy = bench.pipeline.step(TYPE, "record")

    def work(indexes: range) -> None:
        for index in indexes:
            held = steps.claim(bench.database, policy, first_dispatch(index))
            if isinstance(held, steps.NotClaimed):
                raise TypeError(f"not claimed: {held.refusal}")
            steps.succeed(bench.database, held, RESULT)

    bench.prepare(count)
    seconds = timed(clients, count, work)
    _check(bench.sql("count_settled"), count)
    return seconds


def _floor(bench: Bench, clients: int, count: int) -> float:
    policy = bench.pipeline.step(TYPE, "record")
    variables = {
        "prefix": ID_PREFIX,
        "i": "-1",
        "step": "record",
        "type": TYPE,
        "dispatch": "1",
        "fence": "1",
        "attempts": str(policy.attempts),
        "lease": str(policy.lease.total_seconds()),
        "result": ijson.canonical(RESULT).decode(),
        "writer_lease": str(WRITER_LEASE),
        "traceparent": TRACEPARENT,
    }
    numbered = {_ID: "CAST(CAST(:prefix AS text) || CAST(:n AS text) AS uuid)"}  # pgbench cannot make a uuid's text
    script = [
        "\\set i :i + 1",
        f"\\set n {FIRST_NUMBER} + :client_id * {count // clients} + :i",
        floor.statement("claim_step", numbered),
        floor.statement("settle_succeeded", numbered),
    ]
    bench.prepare(count)
    seconds = floor.run(bench, clients, count, script, variables)
    _check(bench.sql("count_settled"), count)
    return seconds


def _usual(bench: Bench, clients: int, count: int) -> float:
    result = ijson.canonical(RESULT).decode()

    def work(indexes: range) -> None:
        with contextlib.closing(bench.dbapi()) as connection:
            for index in indexes:
                _usual_step(connection, str(operation_id(index)), result)

    bench.prepare_usual(count)
    seconds = timed(clients, count, work)
    _check(bench.sql("usual_count_settled"), count)
    return seconds


def _usual_step(connection: Any, operation: str, result: str) -> None:
    cursor = connection.cursor()
    cursor.execute(SQL["usual_claim_read"], (operation, "record"))
    cursor.fetchone()
    cursor.execute(SQL["usual_claim_write"], (operation, "record"))
    connection.commit()
    cursor.execute(SQL["usual_settle_step"], (result, operation, "record"))
    cursor.execute(SQL["usual_settle_next"], (operation, "render"))
    cursor.execute(SQL["usual_accept_outbox"], (operation, "render"))
    cursor.execute(SQL["usual_settle_operation"], (operation,))
    connection.commit()


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} steps were settled, not {expected}")
