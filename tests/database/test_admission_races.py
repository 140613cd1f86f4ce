"""Admission under concurrency: many that admit, accept, end and cancel at once, and one that is killed."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

from shared import admission, operations, steps
from shared.database import Connection, connector
from shared.identity import Options
from shared.operations import Accepted
from tests.database.gate import KEY, Gate
from tests.database.test_steps import at_once

YEAR = timedelta(days=365)
PATIENCE = 60.0  # seconds; far longer than anything here takes on a busy machine


def ids(accepted: list[Accepted]) -> list[UUID]:
    return [one.operation_id for one in accepted]


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
    # Too late to run: its row is gone or its claim refused; too late to cancel: it has ended.
    too_late = (ValueError, AssertionError, operations.NotCancellableError, type(None))
    for _ in range(25):
        head, after = gate.submit(KEY).operation_id, gate.submit(KEY).operation_id
        ended = at_once(partial(gate.finish, head), partial(gate.stop, head))
        assert [one for one in ended if not isinstance(one, too_late)] == []
        gate.admit()  # what does not end in time does not admit either
        assert gate.operation_state(head) in {"succeeded", "cancelled"}
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
