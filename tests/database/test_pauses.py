"""Pauses, circuits and a step's own deadline: what holds a step back fails nothing and loses nothing."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from shared import circuits, pauses, progress, relay, review, steps
from shared.duties import undelivered
from shared.errors import InvalidRequestError
from shared.outbox import UNCLAIMED_LIMIT, Outbox
from shared.pauses import Kind, NotPausedError, Pause, PausedAlreadyError
from shared.publisher import Dispatch, Publisher
from shared.steps import Refusal
from tests.database.kit import Kit, drained


class _Nowhere(Publisher):
    """Publishes nothing: whatever it takes is lost."""

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = 0) -> None:
        """Do nothing."""


PAUSES: list[tuple[Kind, str]] = [("step", "test.paid/only"), ("tenant", "shop"), ("provider", "till")]


def pause(kit: Kit, kind: Kind, name: str) -> None:
    pauses.pause(kit.database, kit.pipeline, kind, name, "ada@example.com", "the till is being mended")


def due(kit: Kit, operation_type: str = "test.paid", tenant: str = "shop") -> Dispatch:
    return kit.accept(operation_type, tenant=tenant).due[0]


def open_circuit(kit: Kit) -> None:
    for _ in range(circuits.THRESHOLD):
        circuits.failed(kit.database, "till")


def let_the_pause_of_the_circuit_end(kit: Kit) -> None:
    kit.query("UPDATE circuits SET open_until = now() - interval '1 second' WHERE open_until IS NOT NULL")


@pytest.mark.parametrize(("kind", "name"), PAUSES)
def test_what_is_paused_is_held_and_goes_on_afterwards(kit: Kit, kind: Kind, name: str) -> None:
    dispatch = due(kit)
    pause(kit, kind, name)
    assert kit.refusal(dispatch) is Refusal.HELD
    assert kit.dispatches(dispatch.operation_id) == [dispatch]
    assert kit.value(f"SELECT failures + attempt FROM steps WHERE operation_id = '{dispatch.operation_id}'") == 0
    pauses.resume(kit.database, kind, name)
    kit.claimed(dispatch)


def test_a_pause_holds_nothing_else(kit: Kit) -> None:
    for kind, name in [("step", "test.paid/only"), ("tenant", "other"), ("provider", "till")]:
        pauses.pause(kit.database, kit.pipeline, kind, name, "ada", "a test")  # type: ignore[arg-type]
    kit.claimed(due(kit, "test.single"))


def test_a_running_attempt_goes_on_through_a_pause(kit: Kit) -> None:
    held = kit.claimed(due(kit))
    pause(kit, "tenant", "shop")
    assert steps.succeed(kit.database, held, None)[0] == "succeeded"


def test_a_paused_step_can_still_be_cancelled(kit: Kit) -> None:
    dispatch = due(kit)
    pause(kit, "tenant", "shop")
    kit.query(f"UPDATE steps SET cancel_requested_at = now() WHERE operation_id = '{dispatch.operation_id}'")
    assert kit.refusal(dispatch) is Refusal.CANCELLED


def test_a_pause_says_who_paused_what_and_why_and_is_made_once(kit: Kit) -> None:
    pause(kit, "step", "test.paid/only")
    with pytest.raises(PausedAlreadyError, match=r"test\.paid/only is paused already"):
        pause(kit, "step", "test.paid/only")
    listed = pauses.listed(kit.database)
    assert [(p.kind, p.name, p.actor, p.reason) for p in listed] == [
        ("step", "test.paid/only", "ada@example.com", "the till is being mended")
    ]
    assert isinstance(listed[0], Pause)
    pauses.resume(kit.database, "step", "test.paid/only")
    with pytest.raises(NotPausedError):
        pauses.resume(kit.database, "step", "test.paid/only")


@pytest.mark.parametrize(("kind", "name"), [("step", "test.paid"), ("provider", "tills"), ("tenant", "a b")])
def test_a_name_that_does_not_exist_is_refused_and_the_ones_that_do_are_told(kit: Kit, kind: Kind, name: str) -> None:
    with pytest.raises(InvalidRequestError):
        pause(kit, kind, name)


def test_a_circuit_opens_after_enough_failures_in_a_row_and_an_answer_forgets_them(kit: Kit) -> None:
    dispatch = due(kit)
    for _ in range(circuits.THRESHOLD - 1):
        circuits.failed(kit.database, "till")
    circuits.answered(kit.database, "till")
    circuits.failed(kit.database, "till")
    assert kit.value("SELECT open_until FROM circuits") is None
    kit.claimed(dispatch)


def test_an_open_circuit_holds_its_steps_without_charging_them(kit: Kit) -> None:
    dispatch = due(kit)
    open_circuit(kit)
    assert [kit.refusal(dispatch) for _ in range(5)] == [Refusal.HELD] * 5
    assert kit.value(f"SELECT failures FROM steps WHERE operation_id = '{dispatch.operation_id}'") == 0
    kit.claimed(due(kit, "test.single"))


def test_when_the_pause_is_over_one_step_alone_tries_the_provider(kit: Kit) -> None:
    dispatches = [due(kit) for _ in range(12)]
    open_circuit(kit)
    let_the_pause_of_the_circuit_end(kit)
    barrier = threading.Barrier(12)

    def claim(dispatch: Dispatch) -> bool:
        barrier.wait()
        return isinstance(kit.claim(dispatch), steps.Claim)

    with ThreadPoolExecutor(12) as threads:
        assert sum(threads.map(claim, dispatches)) == 1
    circuits.answered(kit.database, "till")
    assert sum(isinstance(kit.claim(dispatch), steps.Claim) for dispatch in dispatches) == 11


def test_a_failed_trial_opens_the_circuit_for_twice_as_long(kit: Kit) -> None:
    open_circuit(kit)
    pauses_seen = []
    for _ in range(7):
        pauses_seen.append(float(kit.value("SELECT extract(epoch FROM open_until - now()) FROM circuits")))
        let_the_pause_of_the_circuit_end(kit)
        kit.claimed(due(kit))
        circuits.failed(kit.database, "till")
    expected = [min(circuits.SHORTEST * 2**n, circuits.LONGEST) for n in range(7)]
    assert pauses_seen == [pytest.approx(seconds, abs=5) for seconds in expected]


def test_late_failures_of_attempts_under_way_do_not_prolong_an_open_circuit(kit: Kit) -> None:
    open_circuit(kit)
    until = kit.value("SELECT open_until FROM circuits")
    circuits.failed(kit.database, "till")
    assert kit.value("SELECT open_until FROM circuits") == until


def test_a_trial_that_dies_gives_way_to_the_next(kit: Kit) -> None:
    first, second = due(kit), due(kit)
    open_circuit(kit)
    let_the_pause_of_the_circuit_end(kit)
    kit.claimed(first)
    assert kit.refusal(second) is Refusal.HELD
    let_the_pause_of_the_circuit_end(kit)
    kit.claimed(second)


def test_a_pause_beside_a_circuit_keeps_the_trial_for_somebody_who_may_run(kit: Kit) -> None:
    dispatch = due(kit)
    open_circuit(kit)
    let_the_pause_of_the_circuit_end(kit)
    pause(kit, "tenant", "shop")
    assert kit.refusal(dispatch) is Refusal.HELD
    kit.claimed(due(kit, tenant="other"))


def test_the_relay_offers_the_trial_to_a_step_that_no_pause_keeps_from_it(kit: Kit) -> None:
    paused, free = due(kit), due(kit, tenant="other")
    outbox = Outbox(kit.database, kit.pipeline, _Nowhere("test-project"))
    open_circuit(kit)
    let_the_pause_of_the_circuit_end(kit)
    pause(kit, "tenant", "shop")
    assert circuits.probe(outbox, kit.pipeline) == 1
    published = "SELECT operation_id FROM outbox WHERE published > 0"
    assert kit.query(published) == [[free.operation_id]]
    pause(kit, "step", "test.paid/only")
    assert circuits.probe(outbox, kit.pipeline) == 0
    assert kit.dispatches(paused.operation_id) == [paused]


def test_trials_that_others_were_faster_to_take_up_do_not_make_a_dispatch_undeliverable(kit: Kit) -> None:
    dispatch = due(kit)
    outbox = Outbox(kit.database, kit.pipeline, _Nowhere("test-project"))
    open_circuit(kit)
    for _ in range(UNCLAIMED_LIMIT + 1):
        let_the_pause_of_the_circuit_end(kit)
        assert circuits.probe(outbox, kit.pipeline) == 1
    circuits.answered(kit.database, "till")
    kit.query("UPDATE outbox SET publish_after = now()")
    assert drained(undelivered.batches, outbox, kit.pipeline) == {"undelivered": 0}
    assert [leased.operation_id for leased in relay.lease_due_rows(kit.database, kit.pipeline)] == [
        dispatch.operation_id
    ]
    turn = kit.value("SELECT extract(epoch FROM publish_after - now()) FROM outbox")
    assert float(turn) < 120  # its first turn of its own
    kit.claimed(dispatch)


def test_forty_failures_at_once_are_all_counted_and_open_the_circuit_once(kit: Kit) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: circuits.failed(kit.database, "till"), range(40)))
    assert kit.query("SELECT failures, openings FROM circuits") == [[40, 1]]
    assert [circuit.provider for circuit in circuits.listed(kit.database)] == ["till"]


def test_a_claim_notes_how_far_its_topic_is_consumed_at_most_once_a_second(kit: Kit) -> None:
    progress.prepare(kit.database, kit.pipeline)
    progress.prepare(kit.database, kit.pipeline)
    old, new = due(kit), due(kit)
    kit.claimed(new)
    noted = "SELECT newest_available_at FROM progress WHERE type = 'test.paid' AND step = 'only'"
    newest = kit.value(f"SELECT available_at FROM steps WHERE operation_id = '{new.operation_id}'")
    assert kit.value(noted) == newest
    kit.query("UPDATE progress SET claimed_at = now() - interval '2 seconds' WHERE type = 'test.paid'")
    kit.claimed(old)
    assert kit.value(noted) == newest
    assert kit.value("SELECT count(*) FROM progress WHERE claimed_at > '-infinity'") == 1


def test_no_attempt_starts_after_the_steps_own_deadline_which_counts_from_when_it_was_due_first(kit: Kit) -> None:
    dispatch = due(kit, "test.dated")
    held = kit.claimed(dispatch)
    assert kit.fail(held) == "queued"
    kit.query("UPDATE steps SET due_at = due_at - interval '61 seconds'")
    assert kit.refusal(kit.dispatches(dispatch.operation_id)[0]) is Refusal.EXHAUSTED
    assert (
        kit.value(f"SELECT error_kind FROM steps WHERE operation_id = '{dispatch.operation_id}'") == "deadline_passed"
    )
    again = review.resume(kit.database, dispatch.operation_id, "only", "ada", "there is time after all")
    kit.claimed(again)
