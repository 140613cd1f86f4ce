"""Cases of CASES.md on the wire: the real provider, the real payment server, recorded requests compared by bytes."""

from __future__ import annotations

from urllib.parse import parse_qsl
from uuid import UUID

import pytest

from shared import review
from tests.effects.attempt import AFTER, ANSWER
from tests.effects.till import Till


def single(till: Till) -> UUID:
    return till.accept().operation_id


def state(till: Till, operation_id: UUID, step: str = "only") -> str:
    return till.states(operation_id)[step]


def test_case_35_retry_sigkill_and_replay_send_the_identical_key(till: Till) -> None:
    operation_id = single(till)
    till.next(*["drop_after_commit"] * 5)
    assert till.run(operation_id) == "queued"  # committed, the response dropped
    till.die(operation_id, AFTER, ANSWER)  # again, and SIGKILL
    assert [till.run(operation_id) for _ in range(3)] == ["queued", "queued", "unresolved"]
    review.resume(till.database, operation_id, "only", "ada", "the provider is back")
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=6)


def test_case_36_a_saved_500_is_looked_up_and_found(till: Till) -> None:
    operation_id = single(till)
    till.next("error_after_commit")
    assert till.run(operation_id) == "queued"
    assert till.run(operation_id) == "succeeded"  # the saved 500 again: looked up at once
    till.check_wire(requests=2)
    assert till.effect(operation_id)["evidence"] == "lookup"


def test_case_36_a_saved_500_that_did_nothing_waits_for_a_person_without_a_fresh_key(till: Till) -> None:
    operation_id = single(till)
    till.next("error_saved")
    assert till.run(operation_id) == "queued"
    assert till.run(operation_id) == "queued"  # the saved 500 again; absent, which is no proof yet
    assert till.effect(operation_id)["lookups"] == 1
    till.pass_time()
    assert till.run(operation_id) == "unresolved"  # proved absent, and the key is spent
    assert till.effect(operation_id)["state"] == "not_sent"
    assert till.look_up() == 0
    review.resume(till.database, operation_id, "only", "ada", "without a new generation")
    assert till.run(operation_id) == "unresolved"
    till.check_wire(requests=2, paid=0)
    assert review.renew_effect(till.database, operation_id, "only", "effect", "ada", "it never happened") == 2
    review.resume(till.database, operation_id, "only", "ada", "with one")
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1
    assert len({key for key, _ in till.wire}) == 2


def test_case_37_timeout_409_409_200_is_one_success(till: Till) -> None:
    operation_id = single(till)
    till.next("hang_before_commit", "conflict", "conflict")
    assert [till.run(operation_id) for _ in range(3)] == ["queued"] * 3
    till.wait_for_payment()
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=4)


def test_case_37_a_real_409_while_the_first_request_is_in_progress(till: Till) -> None:
    operation_id = single(till)
    till.next("hang_before_commit", seconds=4)
    assert till.run(operation_id) == "queued"
    assert till.run(operation_id) == "queued"
    assert till.effect(operation_id)["reason"].startswith("409")
    till.wait_for_payment()
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=3)


def test_case_37_endless_409_is_reviewed_and_not_failed(till: Till) -> None:
    operation_id = single(till)
    till.next(*["conflict"] * 5)
    assert [till.run(operation_id) for _ in range(5)] == ["queued"] * 4 + ["unresolved"]
    assert till.operation_state(operation_id) == "needs_review"
    assert till.query("SELECT cause, state FROM dead_letters") == [["unresolved", "open"]]
    till.check_invariant()
    review.resume(till.database, operation_id, "only", "ada", "it is over")
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=6)


@pytest.mark.parametrize(("fault", "requests"), [("drop_after_commit", 1), ("drop_before_commit", 2)])
def test_case_38_an_ambiguous_call_replayed_after_25_hours_is_looked_up_first(
    till: Till, fault: str, requests: int
) -> None:
    operation_id = single(till)
    till.next(fault)
    assert till.run(operation_id) == "queued"
    till.pass_time(25 * 3600)  # the provider has pruned the key: a second request would be a second payment
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests)
    assert till.effect(operation_id)["lookups"] == 1


def test_case_39_key_and_body_are_identical_across_attempts_and_distinct_across_steps(till: Till) -> None:
    operation_id = till.accept("test.line").operation_id
    till.next("drop_after_commit", "drop_after_commit", "none", "drop_before_commit", "error_unsaved", "none")
    assert [till.run(operation_id) for _ in range(6)] == ["queued", "queued", "succeeded"] * 2
    first, second = till.wire[:3], till.wire[3:]
    assert len(set(first)) == len(set(second)) == 1
    assert first[0][0] != second[0][0]
    bodies = [dict(parse_qsl(body)) for _, body in (first[0], second[0])]
    assert [body.pop("metadata[echoproof_key]") for body in bodies] == [first[0][0], second[0][0]]
    assert bodies[0] == bodies[1]  # the steps ask for the same: only the key tells them apart
    assert till.paid == 2
    assert till.operation_state(operation_id) == "succeeded"


def test_a5_a_lost_answer_is_never_followed_by_a_blind_second_effect(till: Till) -> None:
    operation_id = single(till)
    till.next("hang_after_commit")
    assert till.run(operation_id) == "queued"  # timed out; the payment was made
    assert till.effect(operation_id)["state"] == "unknown"
    assert till.paid == 1
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=2)


def test_a8_a_process_that_stopped_between_the_call_and_its_completion_is_recovered(till: Till) -> None:
    operation_id = single(till)
    till.die(operation_id, AFTER, ANSWER)
    assert till.paid == 1
    assert till.effect(operation_id)["state"] == "intended"
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=2)
    assert till.operation_state(operation_id) == "succeeded"
    assert till.value("SELECT count(*) FROM attempts WHERE outcome = 'abandoned'") == 1
