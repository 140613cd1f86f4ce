"""Retention: what is old and finished goes whole, nothing goes from under what is open, identities go last."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from shared import operations, steps
from shared.database_errors import ConnectionLostError
from shared.duties import retention
from shared.identity import Options
from shared.operations import Accepted
from shared.outbox import Outbox
from shared.pipeline import Retention
from shared.review import plan
from shared.steps import Refusal
from tests.database.gate import KEY, Gate
from tests.database.kit import drained
from tests.database.pause import closed_gate, paused, sweeper
from tests.database.test_steps import at_once

SHORT = timedelta(milliseconds=1)
LONG = timedelta(days=1)
TABLES = ("operations", "steps", "attempts", "outbox", "effects", "dead_letters")


def keep(gate: Gate, kept: timedelta = SHORT, identities: timedelta = LONG) -> None:
    gate.pipeline = replace(gate.pipeline, retention=Retention(kept, identities))


def prune(gate: Gate) -> dict[str, int]:
    time.sleep(0.005)  # more than the shortest retention
    return dict(drained(retention.batches, gate.outbox, gate.pipeline, 7))


def finished(gate: Gate, count: int = 1) -> list[UUID]:
    done = [gate.submit().operation_id for _ in range(count)]
    for operation_id in done:
        gate.finish(operation_id)
    return done


def rows(gate: Gate) -> dict[str, int]:
    return {table: gate.value(f"SELECT count(*) FROM {table}") for table in TABLES}


def effect(gate: Gate, operation_id: UUID, state: str) -> None:
    more = {
        "unknown": ("unknown_since, request", "now(), ''"),
        "confirmed": ("confirmed_at, request", "now(), ''"),
        "approved": ("reference", "NULL"),
    }
    columns, values = more.get(state, ("request", "''"))
    gate.query(
        f"INSERT INTO effects (operation_id, step, name, provider, state, provider_key, {columns}) "
        f"VALUES ('{operation_id}', 'only', '{state}', 'till', '{state}', '{operation_id}{state}', {values})"
    )


def test_a_finished_operation_goes_whole_and_its_identity_and_business_rows_stay(gate: Gate) -> None:
    accepted = gate.accept(key="kept")
    operation_id = accepted.operation_id
    gate.finish(operation_id)
    for state in ("confirmed", "rejected", "not_sent"):
        effect(gate, operation_id, state)
    gate.query(
        "INSERT INTO dead_letters (operation_id, step, generation, cause, state, closed_at) "
        f"VALUES ('{operation_id}', 'only', 1, 'exhausted', 'closed', now())"
    )
    gate.query(
        "INSERT INTO notifications (operation_id, step, effect, tenant, message_id) "
        f"VALUES ('{operation_id}', 'only', 'mail', 'shop', 'm-1')"
    )
    keep(gate)
    assert prune(gate) == {"pruned": 1, "forgotten": 0}
    assert rows(gate) == dict.fromkeys(TABLES, 0)
    assert gate.query("SELECT pruned_at IS NOT NULL FROM identities") == [[True]]
    assert gate.value("SELECT count(*) FROM notifications") == 1
    assert gate.accept(key="kept") == Accepted(operation_id, new=False, due=[])
    assert gate.refusal(accepted.due[0]) is Refusal.PRUNED


@pytest.mark.parametrize("guard", ["intended", "unknown", "approved", "outbox", "letter", "recent", "unfinished"])
def test_nothing_goes_from_under_what_is_open(gate: Gate, guard: str) -> None:
    (operation_id,) = finished(gate)
    keep(gate)
    match guard:
        case "outbox":
            gate.query(
                "INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after) "
                f"VALUES ('{operation_id}', 'only', 'test.single', 1, now(), now())"
            )
        case "letter":
            gate.query(
                "INSERT INTO dead_letters (operation_id, step, generation, cause) "
                f"VALUES ('{operation_id}', 'only', 1, 'undelivered')"
            )
        case "recent":
            keep(gate, timedelta(hours=1))
        case "unfinished":
            gate.query("UPDATE operations SET state = 'running', finished_at = NULL")
        case _:
            effect(gate, operation_id, guard)
    before = rows(gate)
    assert prune(gate)["pruned"] == 0
    assert rows(gate) == before


def test_without_a_retention_everything_stays(gate: Gate) -> None:
    finished(gate, 3)
    assert prune(gate) == {}
    assert rows(gate)["operations"] == 3


def test_an_identity_goes_when_its_own_time_is_over_and_the_rest_of_it_has_passed_since_its_record_went(
    gate: Gate,
) -> None:
    gate.accept(key="old")
    gate.finish(gate.queued[0])
    keep(gate, SHORT, timedelta(hours=1))
    assert prune(gate) == {"pruned": 1, "forgotten": 0}
    gate.query("UPDATE identities SET accepted_at = now() - interval '1 day'")
    keep(gate, SHORT, timedelta(milliseconds=2))
    gate.query("UPDATE identities SET pruned_at = now() + interval '1 hour'")
    assert prune(gate)["forgotten"] == 0
    gate.query("UPDATE identities SET pruned_at = now() - interval '1 hour'")
    assert prune(gate)["forgotten"] == 1
    assert gate.accept(key="old").new


def test_an_ordering_key_goes_with_the_last_operation_that_it_was_given_to_unless_one_waits(gate: Gate) -> None:
    far = Options(not_before=datetime.now(UTC) + timedelta(days=365), ordering_key="account-7")
    first = gate.submit(KEY).operation_id
    waiting = gate.submit(far).operation_id
    last = gate.submit(KEY).operation_id
    gate.finish(first)
    gate.finish(last)
    keep(gate)
    assert prune(gate)["pruned"] == 2
    assert gate.value("SELECT count(*) FROM ordering_keys") == 1
    gate.query(f"UPDATE operations SET not_before = now() WHERE id = '{waiting}'")
    assert gate.admit() == 1
    gate.finish(waiting)
    last = gate.submit(KEY).operation_id
    gate.finish(last)
    assert prune(gate)["pruned"] == 2
    assert gate.value("SELECT count(*) FROM ordering_keys") == 0


def test_an_ordering_key_that_a_dry_run_has_made_again_goes_too(gate: Gate) -> None:
    failed = gate.submit(KEY).operation_id
    gate.fail(gate.claimed(gate.dispatches(failed)[0]), steps.Outcome.FAILED)
    gate.query("DELETE FROM ordering_keys")  # pruned with a later operation
    assert plan.dry_run(gate.database, gate.pipeline, failed, "only").refusal is None
    assert gate.query("SELECT tail FROM ordering_keys") == [[0]]
    keep(gate)
    assert prune(gate)["pruned"] == 1
    assert gate.value("SELECT count(*) FROM ordering_keys") == 0


def test_prunings_at_once_take_each_operation_once(gate: Gate) -> None:
    finished(gate, 60)
    keep(gate)
    time.sleep(0.005)
    counts = at_once(*[partial(drained, retention.batches, gate.outbox, gate.pipeline, 7)] * 4)
    assert sum(count["pruned"] for count in counts) == 60
    assert rows(gate) == dict.fromkeys(TABLES, 0)


def test_a_pruning_that_is_killed_has_taken_nothing(gate: Gate) -> None:
    finished(gate, 3)
    keep(gate)
    before = rows(gate)
    with sweeper(gate) as database, ThreadPoolExecutor(1) as pool, closed_gate(gate):
        outbox = Outbox(database, gate.pipeline, gate.outbox._publisher)
        sweep = pool.submit(drained, retention.batches, outbox, gate.pipeline)
        gate.query(f"SELECT pg_terminate_backend({paused(gate)})")
        with pytest.raises(ConnectionLostError):
            sweep.result()
    assert rows(gate) == before
    assert prune(gate)["pruned"] == 3


def test_a_listing_of_what_is_pruned_is_empty(gate: Gate) -> None:
    finished(gate, 2)
    keep(gate)
    prune(gate)
    page = operations.list_page(gate.database, "shop", state=None, operation_type=None, cursor=None, page_size=10)
    assert page == ([], None)
