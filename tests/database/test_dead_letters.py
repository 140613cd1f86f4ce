"""What Pub/Sub gave up: recorded once, closed by itself when something still owns the step, else for a person."""

from __future__ import annotations

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from shared import dead_letters, envelope, operations, steps
from shared.dead_letters import Recorded
from shared.publisher import Dispatch
from shared.steps import Outcome
from tests.database.kit import Kit

SUBSCRIPTION = "test-only"
NOBODY = UUID(int=7)


def letter(dispatch: Dispatch, count: str | None = "100", message_id: str = "77") -> bytes:
    """A push of the dead-letter topic as Google's: the original message and where it came from."""
    data = envelope.encode(dispatch.operation_id, dispatch.type, dispatch.step, dispatch.dispatch)
    attributes = {"CloudPubSubDeadLetterSourceSubscription": SUBSCRIPTION}
    if count is not None:
        attributes["CloudPubSubDeadLetterSourceDeliveryCount"] = count
    return push(data, attributes, message_id)


def push(data: bytes, attributes: dict[str, str], message_id: str) -> bytes:
    message: dict[str, Any] = {"messageId": message_id, "attributes": attributes}
    message["data"] = base64.b64encode(data).decode()
    return json.dumps({"message": message, "subscription": "projects/p/subscriptions/dead-letter"}).encode()


def record(kit: Kit, body: bytes) -> Recorded:
    return dead_letters.record(kit.database, body, {"Content-Type": "application/json"})


def rows(kit: Kit, columns: str = "cause, state, occurrences") -> list[list[Any]]:
    return kit.query(f"SELECT {columns} FROM dead_letters ORDER BY opened_at, id")


def exhaust(kit: Kit, kind: str = "test.single") -> Dispatch:
    """Spend a step's whole budget and return its last message."""
    accepted = kit.accept(kind)
    last = accepted.due[0]
    for _ in range(3):
        last = kit.dispatches(accepted.operation_id)[0]
        kit.fail(kit.claimed(last))
    assert kit.operation_state(accepted.operation_id) == "needs_review"
    return last


def test_case_29_copies_of_one_dead_letter_are_one_review_item_whatever_they_count(kit: Kit) -> None:
    last = exhaust(kit)
    for number, count in enumerate((None, "5", "1", "7")):
        assert record(kit, letter(last, count, f"m{number}")) == Recorded("open", number + 2)
    assert rows(kit, "cause, state, occurrences, delivery_count, subscription, message_id") == [
        ["exhausted", "open", 5, 7, SUBSCRIPTION, "m3"]
    ]
    assert record(kit, letter(last, "many", "m4")).occurrences == 6
    assert rows(kit, "delivery_count") == [[7]]  # what is no number takes nothing away


def test_case_29_copies_of_a_malformed_dead_letter_are_one_review_item(kit: Kit) -> None:
    source = "CloudPubSubDeadLetterSource"
    for count in (None, "5", "1", "7"):
        attributes = {f"{source}Subscription": SUBSCRIPTION}
        attributes |= {} if count is None else {f"{source}DeliveryCount": count}
        record(kit, push(b"not json", attributes, f"m{count}"))
    assert rows(kit) == [["malformed", "open", 4]]


def test_case_29_copies_at_the_same_moment(kit: Kit) -> None:
    last = exhaust(kit)
    with ThreadPoolExecutor(10) as pool:
        found = list(pool.map(lambda n: record(kit, letter(last, str(n))), range(40)))
    assert sorted(one.occurrences for one in found) == list(range(2, 42))
    assert rows(kit) == [["exhausted", "open", 41]]


def test_an_outage_leaves_no_review_queue(kit: Kit) -> None:
    queued = kit.accept().due[0]
    running = kit.accept().due[0]
    kit.claimed(running)
    done = kit.accept().due[0]
    steps.succeed(kit.database, kit.claimed(done), None)
    for dispatch in (queued, running, done):
        assert record(kit, letter(dispatch)) == Recorded("closed", 1)
    assert rows(kit, "cause, state, closed_reason") == [
        ["undelivered", "closed", "step is queued: its outbox row owns it"],
        ["undelivered", "closed", "step is running: its lease owns it"],
        ["undelivered", "closed", "step is succeeded"],
    ]
    kit.check_invariant()
    assert kit.states(queued.operation_id) == {"only": "queued"}  # it only records
    assert kit.claimed(queued).attempt == 1


def test_case_60_a_row_closed_as_noise_opens_when_the_step_exhausts_in_the_same_generation(kit: Kit) -> None:
    accepted = kit.accept()
    record(kit, letter(accepted.due[0]))
    assert rows(kit) == [["undelivered", "closed", 1]]
    for _ in range(3):
        kit.fail(kit.claimed(kit.dispatches(accepted.operation_id)[0]))
    assert rows(kit, "cause, state, occurrences, error_kind, closed_at, closed_reason") == [
        ["exhausted", "open", 2, "TestError", None, None]
    ]
    kit.check_invariant()


def test_case_60_a_review_row_that_a_person_closed_opens_again_with_a_new_cause(kit: Kit) -> None:
    accepted = kit.accept()
    kit.fail(kit.claimed(accepted.due[0]), Outcome.UNRESOLVED)
    kit.query("UPDATE dead_letters SET state = 'closed', closed_at = now(), closed_reason = 'discarded by a person'")
    # reconcile looks the effect up again; the step goes on and spends its budget in the same generation
    kit.query("UPDATE steps SET state = 'queued', dispatch = 2, finished_at = NULL, available_at = now()")
    for dispatch in (2, 3):
        kit.fail(kit.claimed(Dispatch(accepted.operation_id, "test.single", "only", dispatch)))
    assert kit.states(accepted.operation_id) == {"only": "exhausted"}
    assert rows(kit, "cause, state, occurrences, generation, closed_at, closed_reason") == [
        ["exhausted", "open", 2, 1, None, None]
    ]


def test_success_closes_the_row(kit: Kit) -> None:
    last = exhaust(kit)
    record(kit, letter(last))
    kit.query("UPDATE steps SET state = 'succeeded'")  # resolved with evidence, by review
    assert rows(kit, "state, closed_reason") == [["closed", "step succeeded"]]
    assert record(kit, letter(last)) == Recorded("closed", 3)  # a late copy opens nothing


def test_a_message_for_nobody_is_recorded_once(kit: Kit) -> None:
    nobody = Dispatch(NOBODY, "test.single", "only", 1)
    no_step = Dispatch(kit.accept().operation_id, "test.single", "gone", 1)
    for dispatch in (nobody, nobody, no_step):
        record(kit, letter(dispatch))
    assert rows(kit, "cause, state, occurrences, operation_id") == [
        ["unknown", "open", 2, None],
        ["unknown", "open", 1, None],
    ]


def test_a_message_of_a_pruned_operation_is_only_acknowledged(kit: Kit) -> None:
    accepted = kit.accept()
    steps.succeed(kit.database, kit.claimed(accepted.due[0]), None)
    kit.query(f"DELETE FROM operations WHERE id = '{accepted.operation_id}'")
    recorded = record(kit, letter(accepted.due[0]))
    assert recorded.state == "closed"
    assert kit.value("SELECT count(*) FROM dead_letters WHERE state = 'open'") == 0


@pytest.mark.parametrize("outcome", ["succeed", "exhaust", "unresolved", "cancel"])
def test_a_dead_letter_against_the_end_of_its_step(kit: Kit, outcome: str) -> None:
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    for _ in range(15):
        accepted = kit.accept()
        held = kit.claimed(accepted.due[0])
        kit.query(f"UPDATE steps SET failures = 3 WHERE operation_id = '{accepted.operation_id}'")

        def end(held: steps.Claim = held, accepted: operations.Accepted = accepted) -> None:
            match outcome:
                case "succeed":
                    steps.succeed(kit.database, held, None)
                case "exhaust":
                    assert kit.fail(held) == "exhausted"
                case "unresolved":
                    assert kit.fail(held, Outcome.UNRESOLVED) == "unresolved"
                case _:
                    operations.cancel(kit.database, "shop", accepted.operation_id)
                    steps.succeed(kit.database, held, None)

        barrier = threading.Barrier(3)

        def at_once(call: Any, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            call()

        body = letter(accepted.due[0])
        calls = [end, lambda body=body: record(kit, body), lambda body=body: record(kit, body)]
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(at_once, calls))
        state = kit.value(f"SELECT state FROM dead_letters WHERE operation_id = '{accepted.operation_id}'")
        assert state == ("open" if outcome in {"exhaust", "unresolved"} else "closed")
    kit.check_invariant()
    kit.query("SELECT pg_stat_force_next_flush()")
    assert kit.value(deadlocks) == 0  # each would cost an attempt of a step that settles in its handler's transaction
