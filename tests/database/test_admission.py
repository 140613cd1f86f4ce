"""Which operations may start: in the order of their keys, as far as their tenant has room, and never twice."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from shared import admission, operations, reconcile, steps
from shared.database import Connection, connector
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


def test_many_that_admit_at_once_fill_the_room_and_no_more(gate: Gate) -> None:
    gate.limit(1)
    accepted = [gate.submit() for _ in range(60)]
    gate.limit(25)
    counts = at_once(*[gate.admit] * 8)
    assert sum(counts) == 24
    assert gate.queued == ids(accepted[:25])
    assert gate.query("SELECT DISTINCT dispatch FROM outbox") == [[1]]
    gate.check_invariant()


def test_no_room_goes_unseen_when_every_end_admits(gate: Gate) -> None:
    gate.limit(2)
    count, done = 80, queue.Queue[UUID]()
    for _ in range(count):
        gate.submit()

    def run() -> None:
        while done.qsize() < count:
            try:
                due = gate.published.get(timeout=0.1)
            except queue.Empty:
                continue
            steps.succeed(gate.database, gate.claimed(due), None)
            gate.admit()
            done.put(due.operation_id)

    run_threads(run, 4, lambda: done.qsize() == count)
    assert gate.query("SELECT DISTINCT state FROM operations") == [["succeeded"]]


def test_an_acceptance_at_the_moment_of_its_predecessors_end_starts_without_reconcile(gate: Gate) -> None:
    before = gate.submit(KEY).operation_id
    for _ in range(40):
        at_once(partial(gate.finish, before), partial(gate.submit, KEY))
        (before,) = gate.queued
    assert gate.waiting == []
    gate.check_invariant()


def test_a_cancel_of_the_head_at_the_moment_of_its_end_lets_the_next_go_once(gate: Gate) -> None:
    for _ in range(25):
        head, after = gate.submit(KEY).operation_id, gate.submit(KEY).operation_id
        ended = at_once(partial(gate.finish, head), partial(gate.stop, head))
        assert [
            one for one in ended if not isinstance(one, AssertionError | operations.NotCancellableError | None)
        ] == []
        gate.admit()  # both may have been refused by each other
        assert gate.queued == [after]
        gate.finish(after)
        gate.check_invariant()


def test_case_20_twelve_claimers_run_three_hundred_of_one_key_one_at_a_time_in_order(gate: Gate) -> None:
    count, running, most = 300, threading.Semaphore(12), []
    under_way: list[UUID] = []
    finished: list[UUID] = []

    def submit(number: int) -> None:
        far = datetime.now(UTC) + YEAR if number == 7 else None
        gate.submit(Options(not_before=far, ordering_key="account-7"))

    def claim() -> None:
        with running:
            while len(finished) < count - 1:
                try:
                    due = gate.published.get(timeout=0.1)
                except queue.Empty:
                    continue
                held = gate.claimed(due)
                under_way.append(due.operation_id)
                most.append(len(under_way))
                under_way.remove(due.operation_id)
                steps.succeed(gate.database, held, None)
                finished.append(due.operation_id)
                gate.admit()

    with ThreadPoolExecutor(4) as pool:
        accepting = pool.map(submit, range(count))
        run_threads(claim, 12, lambda: len(finished) == count - 1)
        list(accepting)
    assert max(most) == 1
    order = gate.query("SELECT id FROM operations WHERE not_before IS NULL ORDER BY position")
    assert [[one] for one in finished] == order
    overlaps = gate.value(
        "SELECT count(*) FROM attempts a JOIN attempts b ON a.operation_id < b.operation_id "
        "AND a.started_at < b.ended_at AND b.started_at < a.ended_at"
    )
    assert overlaps == 0
    assert gate.query("SELECT state, not_before IS NULL FROM operations GROUP BY 1, 2 ORDER BY 2") == [
        ["requested", False],
        ["succeeded", True],
    ]
    gate.check_invariant()


def test_whoever_is_killed_while_it_admits_has_changed_nothing_and_the_next_admits(gate: Gate) -> None:
    first, second = gate.submit(KEY), gate.submit(KEY)
    (due,) = gate.dispatches(first.operation_id)
    steps.succeed(gate.database, gate.claimed(due), None)
    gate.query(f"BEGIN; SELECT FROM steps WHERE operation_id = '{second.operation_id}' FOR UPDATE")
    with ThreadPoolExecutor(1) as pool:
        killed = pool.submit(admission.admit, gate.outbox, gate.pipeline, "shop")
        gate_wait_and_kill(gate)
        assert killed.result() == 0
    gate.query("ROLLBACK")
    assert gate.waiting == [second.operation_id]
    assert gate.admit() == 1
    gate.check_invariant()


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


def gate_wait_and_kill(gate: Gate) -> None:
    """Kill the backend that waits for a lock, as a crash would."""
    admin = Connection(connector(gate.url)())
    found: list[list[int]] = []
    waiting = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    while not found:
        found = list(admin.raw.run(waiting) or [])
    admin.raw.run(f"SELECT pg_terminate_backend({found[0][0]})")
    admin.close()


def run_threads(work: object, count: int, done: object) -> None:
    """Run work in so many threads until it is done, and fail when it does not come to its end."""
    assert callable(work)
    assert callable(done)
    threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert done()
