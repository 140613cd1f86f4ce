"""The sweeps: they move only what time has decided, many at once, interrupted anywhere, none starving another."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import UUID

import pytest

from shared import reconcile, steps
from shared.database import Database
from shared.database_errors import ConnectionLostError
from shared.duties import Duty, Moved, deadlines, expired_leases, startable
from shared.errors import EchoproofError
from shared.identity import Options
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.steps import Outcome, Refusal
from tests.database.gate import KEY, Gate
from tests.database.kit import drained
from tests.database.pause import closed_gate, paused, sweeper
from tests.database.test_steps import at_once

PASSED = Options(deadline=datetime.now(UTC) - timedelta(minutes=1))
MANY = 300


def outbox_on(gate: Gate, database: Database) -> Outbox:
    return Outbox(database, gate.pipeline, gate.outbox._publisher)


def swept_meanwhile(gate: Gate, duty: Duty, meanwhile: Callable[[], object]) -> Counter[str]:
    """Pause a sweep between its select and its update, do something, and return what the sweep moved."""
    with sweeper(gate) as database, ThreadPoolExecutor(1) as pool:
        with closed_gate(gate):
            sweep = pool.submit(drained, duty, outbox_on(gate, database), gate.pipeline)
            paused(gate)
            meanwhile()
        return sweep.result()


def test_case_17_a_step_that_finishes_while_its_lease_is_swept_stays_finished(gate: Gate) -> None:
    operation_id, held = gate.start()
    gate.expire_leases()
    moved = swept_meanwhile(gate, expired_leases.batches, lambda: steps.succeed(gate.database, held, None))
    assert moved == {"requeued": 0, "exhausted": 0}
    assert gate.states(operation_id) == {"only": "succeeded"}
    assert gate.query("SELECT outcome FROM attempts") == [["succeeded"]]


def test_case_17_a_step_that_is_reclaimed_while_its_lease_is_swept_keeps_its_new_holder(gate: Gate) -> None:
    operation_id, _ = gate.start()
    gate.expire_leases()

    def reclaim() -> steps.Claim:
        assert drained(expired_leases.batches, gate.outbox, gate.pipeline)["requeued"] == 1
        return gate.claimed(gate.dispatches(operation_id)[0])

    assert swept_meanwhile(gate, expired_leases.batches, reclaim) == {"requeued": 0, "exhausted": 0}
    assert gate.query("SELECT state, fence, attempt, dispatch FROM steps") == [["running", 2, 2, 2]]
    assert gate.query("SELECT outcome FROM attempts") == [["abandoned"]]


def test_case_17_an_overdue_step_that_its_message_ends_while_it_is_swept_is_ended_once(gate: Gate) -> None:
    (due,) = gate.submit(PASSED).due
    moved = swept_meanwhile(gate, deadlines.batches, lambda: gate.refusal(due))
    assert moved == {"overdue": 0}
    assert gate.query("SELECT state, occurrences FROM dead_letters") == [["open", 1]]


def test_case_17_an_overdue_step_that_is_replayed_while_it_is_swept_runs(gate: Gate) -> None:
    operation_id = gate.submit(PASSED).operation_id

    def replay() -> None:
        gate.query("UPDATE operations SET deadline = NULL")
        gate.query("UPDATE steps SET dispatch = dispatch + 1, generation = 2")
        gate.query("UPDATE outbox SET dispatch = dispatch + 1")

    assert swept_meanwhile(gate, deadlines.batches, replay) == {"overdue": 0}
    gate.claimed(gate.dispatches(operation_id)[0])


def test_a_queued_step_past_its_operations_deadline_goes_to_review_and_its_message_finds_nothing(gate: Gate) -> None:
    accepted = gate.submit(PASSED, "test.fan")
    kept = gate.submit(Options(deadline=datetime.now(UTC) + timedelta(hours=1)))
    assert drained(deadlines.batches, gate.outbox, gate.pipeline) == {"overdue": 2}
    assert gate.states(accepted.operation_id) == {"join": "waiting", "left": "exhausted", "right": "exhausted"}
    assert gate.query("SELECT DISTINCT cause, error_kind FROM dead_letters") == [["exhausted", "deadline_passed"]]
    assert gate.operation_state(accepted.operation_id) == "needs_review"
    assert [gate.refusal(due) for due in accepted.due] == [Refusal.DONE, Refusal.DONE]
    assert gate.queued == [kept.operation_id]
    gate.check_invariant()


def test_a_step_past_its_own_deadline_since_it_was_first_due_goes_to_review(gate: Gate) -> None:
    (early,) = gate.submit(kind="test.dated").due
    (late,) = gate.submit(kind="test.dated").due
    gate.fail(gate.claimed(early), Outcome.RETRY, delay=3600)
    gate.fail(gate.claimed(late), Outcome.RETRY, delay=3600)
    gate.query(f"UPDATE steps SET due_at = now() - interval '61 seconds' WHERE operation_id = '{late.operation_id}'")
    assert drained(deadlines.batches, gate.outbox, gate.pipeline) == {"overdue": 1}
    assert gate.states(late.operation_id) == {"only": "exhausted"}
    assert gate.queued == [early.operation_id]
    gate.check_invariant()


def test_what_a_cancel_ends_or_runs_or_looks_up_is_left_alone_by_the_deadline(gate: Gate) -> None:
    running, cancelled, looking = gate.submit(), gate.submit(), gate.submit()
    gate.claimed(running.due[0])
    gate.query(f"UPDATE steps SET cancel_requested_at = now() WHERE operation_id = '{cancelled.operation_id}'")
    gate.query(f"UPDATE steps SET lookups = 1 WHERE operation_id = '{looking.operation_id}'")
    gate.query(
        "INSERT INTO effects (operation_id, step, name, provider, state, provider_key, request, unknown_since) "
        f"VALUES ('{looking.operation_id}', 'only', 'pay', 'till', 'unknown', 'key', '', now())"
    )
    gate.query("UPDATE operations SET deadline = now() - interval '1 minute'")
    assert drained(deadlines.batches, gate.outbox, gate.pipeline) == {"overdue": 0}
    assert gate.queued == [cancelled.operation_id, looking.operation_id]


def test_an_operation_whose_deadline_passes_while_it_waits_never_runs_and_lets_nobody_pass(
    gate: Gate,
) -> None:
    gate.limit(1)
    running, overdue, behind = gate.submit(), gate.submit(KEY), gate.submit(KEY)
    gate.query(f"UPDATE operations SET deadline = now() WHERE id = '{overdue.operation_id}'")
    sweep = reconcile.run_once(gate.outbox, gate.pipeline)
    assert (sweep.overdue, sweep.admitted) == (1, 0)
    assert gate.operation_state(overdue.operation_id) == "needs_review"
    assert gate.value("SELECT sum(attempt) FROM steps") == 0
    assert gate.queued == [running.operation_id]
    assert gate.waiting == [behind.operation_id]
    gate.check_invariant()


def test_sweeps_at_once_move_each_step_once(gate: Gate) -> None:
    leased = [gate.submit() for _ in range(MANY)]
    for accepted in leased:
        gate.claimed(accepted.due[0])
    gate.expire_leases()
    counts = at_once(*[partial(drained, expired_leases.batches, gate.outbox, gate.pipeline, 40)] * 4)
    assert sum(count["requeued"] for count in counts) == MANY
    assert gate.query("SELECT DISTINCT dispatch FROM steps") == [[2]]

    gate.query("UPDATE operations SET deadline = now()")
    counts = at_once(*[partial(drained, deadlines.batches, gate.outbox, gate.pipeline, 40)] * 4)
    assert sum(count["overdue"] for count in counts) == MANY
    assert gate.value("SELECT count(*) FROM dead_letters WHERE occurrences = 1") == MANY
    assert gate.value("SELECT count(*) FROM outbox") == 0
    gate.check_invariant()


def test_waiting_steps_whose_needs_are_met_are_queued_once_by_many_sweeps(gate: Gate) -> None:
    for _ in range(MANY):
        gate.submit(kind="test.line")
    gate.query("UPDATE steps SET needs_left = 0 WHERE step = 'second'")
    counts = at_once(*[partial(drained, startable.batches, gate.outbox, gate.pipeline, 40)] * 4)
    assert sum(count["started"] for count in counts) == MANY
    assert gate.query("SELECT DISTINCT dispatch FROM steps WHERE step = 'second'") == [[1]]


@pytest.mark.parametrize("duty", [expired_leases.batches, deadlines.batches, startable.batches])
def test_a_sweep_that_is_killed_has_moved_nothing_and_the_next_one_does(gate: Gate, duty: Duty) -> None:
    operation_id, _ = gate.start("test.line")
    gate.expire_leases()
    gate.submit(PASSED)
    gate.query(f"UPDATE steps SET needs_left = 0 WHERE operation_id = '{operation_id}' AND step = 'second'")
    before = everything(gate)
    with sweeper(gate) as database, ThreadPoolExecutor(1) as pool, closed_gate(gate):
        sweep = pool.submit(drained, duty, outbox_on(gate, database), gate.pipeline)
        gate.query(f"SELECT pg_terminate_backend({paused(gate)})")
        with pytest.raises(ConnectionLostError):
            sweep.result()
    assert everything(gate) == before
    assert sum(drained(duty, gate.outbox, gate.pipeline).values()) == 1
    reconcile.run_once(gate.outbox, gate.pipeline)
    gate.check_invariant()


def everything(gate: Gate) -> list[list[object]]:
    return [
        row
        for table in ("operations", "steps", "attempts", "outbox", "dead_letters")
        for row in gate.query(f"SELECT to_jsonb(t)::text FROM {table} t ORDER BY 1")
    ]


def test_a_duty_with_an_endless_backlog_keeps_no_other_from_its_work(gate: Gate) -> None:
    done: list[UUID] = []

    def endless(_outbox: Outbox, _pipeline: Pipeline, batch: int) -> Iterator[Moved]:
        while True:
            time.sleep(0.01)
            yield {"requeued": batch}

    def finite(_outbox: Outbox, _pipeline: Pipeline, _batch: int) -> Iterator[Moved]:
        for operation_id in (UUID(int=1), UUID(int=2), UUID(int=3)):
            done.append(operation_id)
            yield {"overdue": 1}

    sweep = reconcile.run_once(gate.outbox, gate.pipeline, time_limit=0.5, duties=[endless, finite, endless])
    assert len(done) == sweep.overdue == 3
    assert sweep.unfinished == 2


def test_a_duty_that_fails_keeps_no_other_from_its_work_and_is_told(gate: Gate) -> None:
    def failing(_outbox: Outbox, _pipeline: Pipeline, _batch: int) -> Iterator[Moved]:
        yield {"requeued": 1}
        raise EchoproofError("for a test")

    gate.submit(PASSED)
    with pytest.raises(EchoproofError, match="for a test"):
        reconcile.run_once(gate.outbox, gate.pipeline, duties=[failing, deadlines.batches])
    assert gate.query("SELECT state FROM steps") == [["exhausted"]]
