"""An unknown effect of an operation that was cancelled, or whose deadline has passed, is still looked up."""

from __future__ import annotations

from uuid import UUID

import pytest

from shared import operations, review
from tests.effects.attempt import AFTER
from tests.effects.till import Till


def unknown(till: Till, fault: str, ending: str) -> UUID:
    operation_id = till.accept().operation_id
    till.next(fault)
    assert till.run(operation_id) == "queued"
    if ending == "cancel":
        operations.cancel(till.database, "shop", operation_id)
    else:
        till.query("UPDATE operations SET deadline = now()")
        till.run(operation_id)
    assert till.states(operation_id) == {"only": "unresolved"}
    return operation_id


@pytest.mark.parametrize("ending", ["cancel", "deadline"])
def test_what_happened_is_found_and_the_step_settled(till: Till, ending: str) -> None:
    operation_id = unknown(till, "drop_after_commit", ending)
    assert till.look_up() == 1
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=1)
    till.check_invariant()
    assert till.operation_state(operation_id) == "succeeded"


@pytest.mark.parametrize("ending", ["cancel", "deadline"])
def test_what_did_not_happen_is_not_sent_any_more(till: Till, ending: str) -> None:
    operation_id = unknown(till, "drop_before_commit", ending)
    assert till.look_up() == 1
    till.run(operation_id)  # proved absent
    till.run(operation_id)
    assert till.states(operation_id) == {"only": "cancelled" if ending == "cancel" else "exhausted"}
    till.check_wire(requests=1, paid=0)
    till.check_invariant()


def test_what_was_intended_and_never_sent_is_given_up(till: Till) -> None:
    operation_id = till.accept().operation_id
    till.die(operation_id, AFTER, "intend_effect")
    operations.cancel(till.database, "shop", operation_id)
    assert till.states(operation_id) == {"only": "unresolved"}
    assert till.look_up() == 1
    assert till.run(operation_id) == "queued"
    assert till.run(operation_id) == "cancelled"
    assert till.effect(operation_id)["state"] == "not_sent"
    assert till.wire == []


def test_a_provider_that_cannot_say_keeps_a_cancelled_step_unresolved_until_a_person_resumes_it(till: Till) -> None:
    operation_id = unknown(till, "drop_after_commit", "cancel")
    assert till.look_up() == 1
    till.next("search_down")
    assert till.run(operation_id) == "unresolved"
    review.resume(till.database, operation_id, "only", "ada", "finish it after all")
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=2)
