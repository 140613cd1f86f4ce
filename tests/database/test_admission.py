"""Which operations may start: in the order of their keys, as far as their tenant has room, and never twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from shared import admission, operations, reconcile
from shared.identity import Options
from shared.operations import Accepted
from tests.database.gate import KEY, Gate
from tests.database.kit import drained
from tests.database.test_steps import at_once

YEAR = timedelta(days=365)
PATIENCE = 60.0  # seconds; far longer than anything here takes on a busy machine


def ids(accepted: list[Accepted]) -> list[UUID]:
    return [one.operation_id for one in accepted]


def test_operations_of_one_key_run_one_after_another_in_order_of_acceptance(gate: Gate) -> None:
    line = ids([gate.submit(KEY) for _ in range(4)])
    for done, operation_id in enumerate(line):
        assert gate.queued == [operation_id]
        assert gate.waiting == line[done + 1 :]
        gate.check_invariant()
        gate.finish(operation_id)
    assert gate.query("SELECT DISTINCT state FROM operations") == [["succeeded"]]
    assert [gate.published.get_nowait().operation_id for _ in line] == line
    assert gate.published.empty()


def test_other_keys_and_other_tenants_do_not_wait(gate: Gate) -> None:
    accepted = [
        gate.submit(KEY),
        gate.submit(Options(ordering_key="account-8")),
        gate.submit(KEY, tenant="other"),
        gate.submit(),
    ]
    assert gate.queued == ids(accepted)
    assert gate.waiting == []


def test_every_first_step_of_an_operation_is_admitted_with_it(gate: Gate) -> None:
    first = gate.submit(KEY)
    second = gate.submit(KEY, "test.fan")
    assert gate.states(second.operation_id) == {"join": "waiting", "left": "waiting", "right": "waiting"}
    gate.finish(first.operation_id)
    assert gate.states(second.operation_id) == {"join": "waiting", "left": "queued", "right": "queued"}
    assert gate.value(f"SELECT steps_alive FROM operations WHERE id = '{second.operation_id}'") == 2
    gate.check_invariant()


def test_an_operation_that_needs_a_review_holds_its_key_unless_its_type_goes_on(gate: Gate) -> None:
    first, second = gate.submit(KEY), gate.submit(KEY)
    gate.query(f"UPDATE steps SET failures = 2 WHERE operation_id = '{first.operation_id}'")
    assert gate.fail(gate.claimed(gate.dispatches(first.operation_id)[0])) == "exhausted"
    assert gate.admit() == 0
    assert gate.waiting == [second.operation_id]
    gate.query("UPDATE operations SET type = 'test.going'")
    assert gate.admit() == 1
    assert gate.queued == [second.operation_id]


def test_an_operation_that_is_not_due_is_passed_over_and_blocks_nobody(gate: Gate) -> None:
    first = gate.submit(KEY)
    later = gate.submit(Options(not_before=datetime.now(UTC) + YEAR, ordering_key="account-7"))
    third = gate.submit(KEY)
    gate.finish(first.operation_id)
    assert gate.queued == [third.operation_id]
    gate.query(f"UPDATE operations SET not_before = now() WHERE id = '{later.operation_id}'")
    assert gate.admit() == 0  # its time has come, but the third runs
    gate.finish(third.operation_id)
    assert gate.queued == [later.operation_id]
    gate.check_invariant()


def test_one_without_a_key_waits_for_its_time_in_the_outbox_and_counts_from_then_on(gate: Gate) -> None:
    gate.limit(1)
    later = gate.submit(Options(not_before=datetime.now(UTC) + YEAR))
    assert not later.waits
    assert gate.query("SELECT available_at = not_before FROM steps, operations") == [[True]]
    now = gate.submit()
    assert not now.waits
    assert gate.submit().waits


def test_a_tenant_has_no_more_in_flight_than_its_limit_and_the_oldest_comes_first(gate: Gate) -> None:
    gate.limit(3)
    line = ids([gate.submit() for _ in range(8)])
    other = gate.submit(tenant="other")
    assert gate.queued == [*line[:3], other.operation_id]
    for done in range(5):
        gate.finish(line[done])
        assert gate.queued == [*line[done + 1 : done + 4], other.operation_id]
        gate.check_invariant()
    assert gate.waiting == []


def test_an_operation_that_needs_a_review_takes_no_room(gate: Gate) -> None:
    gate.limit(1)
    first, second = gate.submit(), gate.submit()
    gate.query("UPDATE steps SET failures = 2 WHERE state = 'queued'")
    assert gate.fail(gate.claimed(gate.dispatches(first.operation_id)[0])) == "exhausted"
    assert gate.admit() == 1
    assert gate.queued == [second.operation_id]


def test_a_repeated_request_finds_the_waiting_operation_and_takes_no_place(gate: Gate) -> None:
    gate.submit(KEY)
    waiting = gate.accept(key="twice", options=KEY)
    tail = gate.value("SELECT tail FROM ordering_keys")
    assert gate.accept(key="twice", options=KEY) == Accepted(waiting.operation_id, new=False, due=[])
    assert gate.value("SELECT tail FROM ordering_keys") == tail
    assert gate.value(f"SELECT position FROM operations WHERE id = '{waiting.operation_id}'") == tail


def test_a_cancel_of_one_that_waits_or_holds_the_key_lets_the_next_go(gate: Gate) -> None:
    first, second, third = ids([gate.submit(KEY) for _ in range(3)])
    gate.stop(second)
    assert gate.queued == [first]
    gate.stop(first)
    assert gate.queued == [third]
    assert gate.operation_state(second) == gate.operation_state(first) == "cancelled"
    gate.check_invariant()


def test_the_status_says_what_an_operation_waits_for(gate: Gate) -> None:
    gate.limit(1)
    soon = Options(not_before=datetime.now(UTC) + YEAR)
    running, behind, crowded, later = gate.submit(KEY), gate.submit(KEY), gate.submit(), gate.submit(soon)
    told = [operations.read(gate.database, "shop", one).get("waiting_for") for one in ids([running, behind, crowded])]
    assert told == [None, "ordering_key", "tenant_limit"]
    assert operations.read(gate.database, "shop", later.operation_id)["waiting_for"] == "not_before"


def test_reconcile_admits_what_nobody_did_for_every_tenant(gate: Gate) -> None:
    for tenant in ("a", "b", "c"):
        for _ in range(3):
            gate.accept(tenant=tenant, options=KEY)
        gate.accept(tenant=tenant, options=Options(ordering_key="account-8"))
    assert len(gate.waiting) == 12
    at_once(*[partial(reconcile.run_once, gate.outbox, gate.pipeline)] * 3)
    assert gate.query("SELECT DISTINCT dispatch FROM outbox") == [[1]]
    assert len(gate.queued) == 6
    assert drained(admission.batches, gate.outbox, gate.pipeline)["admitted"] == 0
    gate.check_invariant()


def test_the_sweep_for_waiting_steps_leaves_what_is_not_admitted_alone(gate: Gate) -> None:
    gate.submit(KEY)
    second = gate.submit(KEY)
    assert reconcile.run_once(gate.outbox, gate.pipeline).started == 0
    assert gate.states(second.operation_id) == {"only": "waiting"}
