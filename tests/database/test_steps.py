"""Claim, heartbeat and settle: under concurrency, with stale fences and messages, and with leases that ran out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest

from shared import operations, steps
from shared.duties import expired_leases, startable
from shared.errors import InvalidJsonError, LeaseLostError
from shared.identity import Options
from shared.outbox import Outbox
from shared.publisher import Dispatch, Publisher
from shared.steps import Outcome, Refusal
from tests.database.kit import Kit, drained


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls at the same moment in threads and return their results in order; an exception is a result."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        barrier.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - compared by the caller
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(run, calls))


def move_expired(kit: Kit) -> tuple[int, int]:
    """Run reconcile's sweep; what it makes due stays in the outbox, because nothing listens."""
    outbox = Outbox(kit.database, kit.pipeline, Publisher("test", client=_unreachable))
    moved = drained(expired_leases.batches, outbox, kit.pipeline)
    return moved["requeued"], moved["exhausted"]


def _unreachable() -> Any:
    import grpc
    from google.pubsub_v1.services.publisher import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    return PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel("127.0.0.1:1")))


def test_a_claim_counts_the_attempt_takes_the_lease_and_the_outbox_row(kit: Kit) -> None:
    accepted = kit.accept()
    assert kit.dispatches(accepted.operation_id) == accepted.due
    held = kit.claimed(accepted.due[0])
    assert (held.attempt, held.fence, held.failures, held.tenant, held.input) == (1, 1, 1, "shop", {"n": 1})
    assert kit.dispatches(accepted.operation_id) == []
    assert kit.operation_state(accepted.operation_id) == "running"
    kit.check_invariant()


def test_success_queues_the_next_step_and_ends_the_operation(kit: Kit) -> None:
    operation_id, held = kit.start("test.line")
    state, due = steps.succeed(kit.database, held, {"number": "INV-1"})
    assert state == "succeeded"
    assert [(d.step, d.dispatch) for d in due] == [("second", 1)]
    kit.check_invariant()
    second = kit.claimed(due[0])
    assert second.results == {"first": {"number": "INV-1"}}
    assert steps.succeed(kit.database, second, None) == ("succeeded", [])
    assert kit.states(operation_id) == {"first": "succeeded", "second": "succeeded"}
    assert kit.operation_state(operation_id) == "succeeded"
    assert kit.query("SELECT step, attempt, outcome FROM attempts ORDER BY step") == [
        ["first", 1, "succeeded"],
        ["second", 1, "succeeded"],
    ]


def test_a1_a7_of_fifty_simultaneous_deliveries_one_is_claimed(kit: Kit) -> None:
    accepted = kit.accept()
    found = at_once(*[lambda: kit.claim(accepted.due[0])] * 18)
    claims = [one for one in found if isinstance(one, steps.Claim)]
    assert len(claims) == 1
    assert {one.refusal for one in found if isinstance(one, steps.NotClaimed)} == {Refusal.BUSY}
    assert kit.value("SELECT failures FROM steps") == 1


def test_a3_a_message_after_completion_gets_the_recorded_result(kit: Kit) -> None:
    accepted = kit.accept()
    held = kit.claimed(accepted.due[0])
    steps.succeed(kit.database, held, {"invoice": "INV-7"})
    again = kit.claim(accepted.due[0])
    assert again == steps.NotClaimed(Refusal.DONE, {"invoice": "INV-7"})
    assert kit.value("SELECT attempt FROM steps") == 1


def test_a_busy_step_refuses_a_duplicate_and_charges_nothing(kit: Kit) -> None:
    accepted = kit.accept()
    kit.claimed(accepted.due[0])
    assert kit.refusal(accepted.due[0]) is Refusal.BUSY
    assert kit.value("SELECT failures FROM steps") == 1


def test_an_older_dispatch_is_stale_and_a_late_original_still_counts(kit: Kit) -> None:
    accepted = kit.accept()
    first = accepted.due[0]
    held = kit.claimed(first)
    assert kit.fail(held) == "queued"
    assert kit.refusal(first) is Refusal.STALE
    second = kit.dispatches(accepted.operation_id)[0]
    assert second.dispatch == 2
    # published twice by the relay: the same number, whichever copy comes first
    assert kit.claimed(second).attempt == 2
    assert kit.refusal(second) is Refusal.BUSY


def test_a_dispatch_that_was_never_given_out_starts_nothing(kit: Kit) -> None:
    accepted = kit.accept()
    assert kit.refusal(replace(accepted.due[0], dispatch=2)) is Refusal.STALE
    assert kit.states(accepted.operation_id) == {"only": "queued"}


def test_an_early_message_leaves_the_row(kit: Kit) -> None:
    accepted = kit.accept()
    held = kit.claimed(accepted.due[0])
    assert kit.fail(held, delay=600) == "queued"
    early = kit.dispatches(accepted.operation_id)[0]
    assert kit.refusal(early) is Refusal.EARLY
    kit.check_invariant()
    kit.query("UPDATE steps SET available_at = now() + interval '1 second'")  # within the grace
    assert kit.claimed(early).attempt == 2


def test_an_unknown_operation_or_step_is_told_apart_from_a_pruned_one(kit: Kit) -> None:
    accepted = kit.accept()
    known = accepted.due[0]
    nobody = Dispatch(type(known.operation_id)(int=7), known.type, known.step, 1)
    assert kit.refusal(nobody) is Refusal.UNKNOWN
    kit.query("DELETE FROM operations")
    assert kit.refusal(known) is Refusal.PRUNED


def test_a_stale_fence_can_neither_finish_nor_fail_nor_beat(kit: Kit) -> None:
    operation_id, old = kit.start()
    kit.expire_leases()
    assert move_expired(kit) == (1, 0)
    new = kit.claimed(kit.dispatches(operation_id)[0])
    assert new.fence == old.fence + 1
    with pytest.raises(LeaseLostError):
        steps.succeed(kit.database, old, {"by": "old"})
    with pytest.raises(LeaseLostError):
        kit.fail(old)
    with pytest.raises(LeaseLostError):
        steps.extend(kit.database, old, timedelta(0))
    with pytest.raises(LeaseLostError), kit.database.transaction() as transaction:
        steps.hold(transaction, old)
    steps.succeed(kit.database, new, {"by": "new"})
    assert kit.query("SELECT result->>'by' FROM steps") == [["new"]]


def test_a_message_never_takes_an_expired_lease(kit: Kit) -> None:
    accepted = kit.accept()
    kit.claimed(accepted.due[0])
    kit.expire_leases()
    assert kit.refusal(accepted.due[0]) is Refusal.BUSY


def test_an_expired_lease_whose_holder_lives_can_still_be_settled_until_reconcile_moves_it(kit: Kit) -> None:
    operation_id, held = kit.start()
    kit.expire_leases()
    steps.succeed(kit.database, held, None)
    assert move_expired(kit) == (0, 0)
    assert kit.operation_state(operation_id) == "succeeded"


def test_reconcile_and_a_late_settle_at_once_move_the_step_once(kit: Kit) -> None:
    for _ in range(10):
        operation_id, held = kit.start()
        kit.expire_leases()
        moved, settled = at_once(lambda: move_expired(kit), partial(steps.succeed, kit.database, held, None))
        if isinstance(settled, LeaseLostError):
            assert moved == (1, 0)
            assert kit.states(operation_id) == {"only": "queued"}
        else:
            assert (moved, settled) == ((0, 0), ("succeeded", []))
            assert kit.states(operation_id) == {"only": "succeeded"}
        kit.check_invariant()


def test_eight_sweeps_at_once_move_each_lease_once(kit: Kit) -> None:
    for _ in range(30):
        kit.start()
    kit.expire_leases()
    counts = at_once(*[lambda: move_expired(kit)] * 8)
    assert sum(requeued for requeued, _ in counts) == 30
    assert kit.value("SELECT count(*) FROM attempts WHERE outcome = 'abandoned'") == 30
    kit.check_invariant()


def test_case_57_a_step_that_always_kills_its_process_is_exhausted_after_its_budget(kit: Kit) -> None:
    accepted = kit.accept()
    messages = list(accepted.due)
    for attempt in (1, 2, 3):
        assert kit.claimed(messages[-1]).attempt == attempt
        for duplicate in messages:  # duplicates arrive all the while
            assert kit.refusal(duplicate) in {Refusal.BUSY, Refusal.STALE}
        kit.expire_leases()
        assert move_expired(kit) == ((1, 0) if attempt < 3 else (0, 1))
        messages += kit.dispatches(accepted.operation_id)
    assert kit.states(accepted.operation_id) == {"only": "exhausted"}
    assert kit.operation_state(accepted.operation_id) == "needs_review"
    assert kit.query("SELECT cause, state, error_kind FROM dead_letters") == [["exhausted", "open", "lease_expired"]]
    assert [kit.refusal(message) for message in messages] == [Refusal.DONE] * 3
    assert kit.value("SELECT attempt FROM steps") == 3
    kit.check_invariant()


def test_retries_exhausted_leave_one_review_row(kit: Kit) -> None:
    accepted = kit.accept()
    for expected in ("queued", "queued", "exhausted"):
        assert kit.fail(kit.claimed(kit.dispatches(accepted.operation_id)[0])) == expected
    assert kit.value("SELECT count(*) FROM dead_letters") == 1
    assert kit.operation_state(accepted.operation_id) == "needs_review"
    assert [row[0] for row in kit.query("SELECT outcome FROM attempts ORDER BY attempt")] == [
        "retry",
        "retry",
        "exhausted",
    ]
    kit.check_invariant()


def test_a_wait_is_refunded_and_bounded_by_its_own_maximum(kit: Kit) -> None:
    accepted = kit.accept()
    for _ in range(5):
        held = kit.claimed(kit.dispatches(accepted.operation_id)[0])
        assert kit.fail(held, Outcome.WAIT) == "queued"
    assert kit.query("SELECT attempt, failures, waits FROM steps") == [[5, 0, 5]]
    assert kit.fail(kit.claimed(kit.dispatches(accepted.operation_id)[0]), Outcome.WAIT) == "exhausted"


def test_permanent_and_unresolved_stop_the_operation_and_what_needs_it(kit: Kit) -> None:
    for outcome, expected in ((Outcome.FAILED, "failed"), (Outcome.UNRESOLVED, "needs_review")):
        operation_id, held = kit.start("test.line")
        assert kit.fail(held, outcome) == outcome.value
        assert kit.states(operation_id) == {"first": outcome.value, "second": "waiting"}
        assert kit.operation_state(operation_id) == expected


def test_case_50_two_needs_settling_at_once_queue_the_step_once(kit: Kit) -> None:
    for _ in range(25):
        accepted = kit.accept("test.fan")
        left, right = (kit.claimed(d) for d in sorted(accepted.due, key=lambda d: d.step))
        due = at_once(
            partial(steps.succeed, kit.database, left, {"side": "left"}),
            partial(steps.succeed, kit.database, right, {"side": "right"}),
        )
        joined = [d for _, ds in due for d in ds]
        assert [(d.step, d.dispatch) for d in joined] == [("join", 1)]
        kit.check_invariant()
        held = kit.claimed(joined[0])
        assert held.results == {"left": {"side": "left"}, "right": {"side": "right"}}
        steps.succeed(kit.database, held, None)
        assert kit.operation_state(accepted.operation_id) == "succeeded"


def test_case_50_a_cancel_against_a_settle_leaves_nothing_without_an_owner(kit: Kit) -> None:
    seen = set()
    for _ in range(25):
        operation_id, held = kit.start("test.line")
        settled, cancelled = at_once(
            partial(steps.succeed, kit.database, held, None),
            partial(operations.cancel, kit.database, "shop", operation_id),
        )
        assert not isinstance(settled, Exception), settled
        assert cancelled is None, cancelled
        kit.check_invariant()
        assert kit.states(operation_id) == {"first": "succeeded", "second": "cancelled"}
        assert kit.operation_state(operation_id) == "cancelled"
        seen.add(len(settled[1]))
    assert seen <= {0, 1}


def test_a_cancel_lets_what_runs_finish_and_starts_nothing_more(kit: Kit) -> None:
    operation_id, held = kit.start("test.line")
    operations.cancel(kit.database, "shop", operation_id)
    assert steps.extend(kit.database, held, timedelta(0)) is True
    assert kit.fail(held) == "queued"  # it gave up; its next dispatch is refused
    again = kit.dispatches(operation_id)[0]
    assert kit.refusal(again) is Refusal.CANCELLED
    assert kit.operation_state(operation_id) == "cancelled"
    kit.check_invariant()


def test_a_deadline_that_has_passed_starts_no_attempt(kit: Kit) -> None:
    accepted = kit.accept(options=Options(deadline=datetime(2020, 1, 1, tzinfo=UTC)))
    assert kit.refusal(accepted.due[0]) is Refusal.EXHAUSTED
    assert kit.query("SELECT cause, error_kind FROM dead_letters") == [["exhausted", "deadline_passed"]]


def test_not_before_holds_the_first_step(kit: Kit) -> None:
    accepted = kit.accept(options=Options(not_before=datetime.now(UTC) + timedelta(hours=1)))
    assert accepted.due == []
    assert kit.refusal(kit.dispatches(accepted.operation_id)[0]) is Refusal.EARLY


def test_a_heartbeat_only_moves_forward_and_never_past_the_attempts_end(kit: Kit) -> None:
    _, held = kit.start()
    steps.extend(kit.database, held, timedelta(seconds=20))
    until = "extract(epoch FROM lease_expires_at - attempt_started_at)::int FROM steps"
    assert kit.value(f"SELECT {until}") == 60
    kit.query("UPDATE steps SET lease_expires_at = now() + interval '90 seconds'")
    before = kit.value("SELECT lease_expires_at FROM steps")
    steps.extend(kit.database, held, timedelta(seconds=20))
    assert kit.value("SELECT lease_expires_at FROM steps") == before
    # case 58: a hung handler beats on, but 40 s of timeout and the margin are all it gets
    kit.query(
        "UPDATE steps SET attempt_started_at = now() - interval '50 seconds', "
        "lease_expires_at = now() + interval '1 second'"
    )
    steps.extend(kit.database, held, timedelta(seconds=20))
    assert kit.value(f"SELECT {until}") == 60


def test_case_9_a_result_that_cannot_be_stored_is_refused_before_anything_is_written(kit: Kit) -> None:
    operation_id, held = kit.start()
    for bad in ({"a": "\x00"}, {"a": float("nan")}, {"a": "\ud800"}, {"a": object()}, {"a": "x" * 300_000}):
        with pytest.raises(InvalidJsonError):
            steps.succeed(kit.database, held, bad)
    assert kit.states(operation_id) == {"only": "running"}
    steps.succeed(kit.database, held, {"text": "\\u0000 is only text"})
    assert kit.query("SELECT result->>'text' FROM steps") == [["\\u0000 is only text"]]


def test_case_9_error_text_is_made_storable(kit: Kit) -> None:
    _, held = kit.start()
    steps.fail(kit.database, held, Outcome.RETRY, "Bad\x00Kind", "nul \x00 lone \ud800 kept \\u0000", timedelta(0))
    assert kit.query("SELECT error_kind, error FROM attempts") == [["BadKind", "nul  lone  kept \\u0000"]]


def test_the_safety_net_queues_a_waiting_step_whose_needs_are_met(kit: Kit) -> None:
    operation_id, held = kit.start("test.line")
    kit.query("UPDATE steps SET needs_left = 0 WHERE step = 'second'")  # as if a release had been missed
    steps.succeed(kit.database, held, None)
    assert kit.states(operation_id) == {"first": "succeeded", "second": "waiting"}
    outbox = Outbox(kit.database, kit.pipeline, Publisher("test", client=_unreachable))
    assert drained(startable.batches, outbox, kit.pipeline) == {"started": 1}
    assert kit.states(operation_id) == {"first": "succeeded", "second": "queued"}
    kit.check_invariant()


def test_a_cancel_and_a_settle_with_business_rows_never_deadlock(kit: Kit) -> None:
    def settle(held: steps.Claim) -> str:
        with kit.database.transaction() as transaction:  # not repeated: a deadlock would be an error here
            steps.hold(transaction, held)
            return steps.succeed(transaction, held, None)[0]

    for _ in range(25):
        accepted = kit.accept("test.fan")
        left, right = (kit.claimed(d) for d in sorted(accepted.due, key=lambda d: d.step))
        ended = at_once(
            partial(settle, left),
            partial(settle, right),
            partial(operations.cancel, kit.database, "shop", accepted.operation_id),
        )
        assert ended[:2] == ["succeeded", "succeeded"]
        assert ended[2] is None or isinstance(ended[2], operations.NotCancellableError)
        kit.check_invariant()
