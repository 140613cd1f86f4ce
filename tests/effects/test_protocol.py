"""Cases 51 to 61 of CASES.md on the wire: what the protocol permits between one send and the next."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from aiohttp import web

from shared import operations, review
from shared.database import connector
from shared.effects import EffectUnknownError
from shared.errors import PermanentError
from shared.step_context import StepContext
from tests.effects.attempt import AFTER, ANSWER
from tests.effects.kit import one_effect
from tests.effects.till import PAY, Interrupted, Till, swallowing


def single(till: Till) -> UUID:
    return till.accept().operation_id


def state(till: Till, operation_id: UUID, step: str = "only") -> str:
    return till.states(operation_id)[step]


@pytest.mark.parametrize("answer", ["rate_limited", "unauthorised", "precondition_failed", "parameters_differ"])
def test_case_51_a_no_after_a_process_that_died_is_not_taken_for_a_no(
    till: Till, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    operation_id = single(till)
    till.die(operation_id, AFTER, ANSWER)
    if answer == "parameters_differ":
        till.bank._store.execute("UPDATE keys SET parameters = '[]'")
    elif answer == "precondition_failed":
        answer_412(monkeypatch)
        till.next("conflict")
    else:
        till.next(answer)
    outcomes = [till.run(operation_id)]
    looked_up = answer in ("precondition_failed", "parameters_differ")
    if not looked_up:
        assert till.effect(operation_id)["state"] in ("intended", "unknown")
        assert till.effect(operation_id)["unaccounted"] == 1
        outcomes.append(till.run(operation_id))
    assert outcomes == (["succeeded"] if looked_up else ["queued", "succeeded"])
    assert till.effect(operation_id)["lookups"] == (1 if looked_up else 0)
    till.check_wire(requests=2 if looked_up else 3)


def answer_412(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the payment server answer 412 where it would refuse a request, which Stripe never does and others do."""
    answer = web.json_response({"error": {"type": "invalid_request_error"}}, status=412)
    monkeypatch.setattr("local.payments.refusal", lambda fault: answer)


@pytest.mark.parametrize("ending", ["cancel", "permanent", "swallowed", "last attempt"])
@pytest.mark.parametrize("fault", ["drop_after_commit", "drop_before_commit"])
def test_case_52_no_step_ends_over_an_unknown_effect(till: Till, ending: str, fault: str) -> None:
    operation_id = single(till)
    if ending == "cancel":
        till.next(fault)
        assert till.run(operation_id) == "queued"
        operations.cancel(till.database, "shop", operation_id)
    elif ending == "last attempt":
        till.next(*[fault] * 5)
        assert [till.run(operation_id) for _ in range(5)] == ["queued"] * 4 + ["unresolved"]
    else:
        till.next(fault)
        then = PermanentError("no") if ending == "permanent" else None
        assert till.run(operation_id, swallowing(till.pay, EffectUnknownError, then)) == "unresolved"
    assert state(till, operation_id) == "unresolved"
    assert till.operation_state(operation_id) == "needs_review"
    assert till.effect(operation_id)["state"] == "unknown"
    till.check_invariant()


def test_case_53_absent_permits_no_send_while_the_first_request_waits_inside_the_provider(till: Till) -> None:
    operation_id = single(till)
    pay = one_effect(till.payments(horizon=timedelta(seconds=1)), PAY)  # so that each next attempt looks up
    till.next("hang_before_commit", seconds=3)
    assert till.run(operation_id, pay) == "queued"
    assert till.run(operation_id, pay) == "queued"  # absent, and no proof
    assert till.effect(operation_id)["lookups"] == 1
    till.check_wire(requests=1, paid=0)
    till.wait_for_payment()
    assert till.run(operation_id, pay) == "succeeded"
    till.check_wire(requests=1)


def test_case_54_a_third_attempt_measures_from_the_second_send(till: Till) -> None:
    operation_id = single(till)
    till.next("drop_before_commit", "drop_before_commit")
    assert till.run(operation_id) == "queued"
    till.pass_time()  # the first send is an hour ago
    till.die(operation_id, AFTER, ANSWER)
    till.query("UPDATE effects SET key_expires_at = now()")  # so that the third must look up
    assert till.run(operation_id) == "queued"
    assert till.effect(operation_id)["lookups"] == 1
    till.check_wire(requests=2, paid=0)
    till.pass_time()
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=3)


def test_case_55_a_key_that_expires_between_decision_and_send_is_not_sent(till: Till) -> None:
    operation_id = single(till)
    till.next("drop_after_commit")
    assert till.run(operation_id) == "queued"
    late = Interrupted(
        connector(till.url), "permit_send", lambda: till.query("UPDATE effects SET key_expires_at = now()")
    )
    till.bank.advance(25 * 3600)
    assert till.run(operation_id, database=late) == "succeeded"
    late.close()
    till.check_wire(requests=1)


def test_case_55_a_confirmation_that_lands_between_decision_and_send_is_used(till: Till) -> None:
    operation_id = single(till)
    till.next("drop_after_commit")
    assert till.run(operation_id) == "queued"
    told = {"id": "pi_1", "status": "succeeded", "amount": 1530, "currency": "gbp"}
    late = Interrupted(connector(till.url), "permit_send", lambda: _confirm(till, operation_id, generation=1))
    delivery = till.deliver(operation_id, till.pay, late)
    late.close()
    assert (delivery.outcome, delivery.result) == ("succeeded", told)
    till.check_wire(requests=1)


def _confirm(till: Till, operation_id: UUID, generation: int) -> None:
    """Let the answer of an earlier attempt arrive."""
    told = '{"id": "pi_1", "status": "succeeded", "amount": 1530, "currency": "gbp"}'
    till.database.run(
        "confirm_effect", provider="till", operation_id=operation_id, step="only", name="effect", generation=generation,
        response=told, reference="pi_1", evidence="answer",
    )  # fmt: skip


def test_a_late_confirmation_of_an_earlier_generation_stops_the_new_one(till: Till) -> None:
    operation_id = single(till)
    till.next("decline")
    assert till.run(operation_id) == "failed"
    review.renew_effect(till.database, operation_id, "only", "effect", "ada", "another card")
    review.resume(till.database, operation_id, "only", "ada", "another card")
    late = Interrupted(connector(till.url), "permit_send", lambda: _confirm(till, operation_id, generation=1))
    assert till.run(operation_id, database=late) == "succeeded"
    late.close()
    till.check_wire(requests=1, paid=0)


def test_case_56_a_new_generation_of_one_effect_leaves_the_other_untouched(till: Till) -> None:
    def two(ctx: StepContext) -> dict[str, Any]:
        deposit = ctx.effect("deposit", till.provider, {**PAY, "amount": 100})
        return {"deposit": deposit["id"], "rest": ctx.effect("rest", till.provider, {**PAY, "amount": 1430})["id"]}

    operation_id = single(till)
    till.next("none", "decline")
    assert till.run(operation_id, two) == "failed"
    deposit = till.effect(operation_id, "deposit")
    assert review.renew_effect(till.database, operation_id, "only", "rest", "ada", "another card") == 2
    review.resume(till.database, operation_id, "only", "ada", "another card")
    till.next(*["drop_before_commit"] * 5)
    assert [till.run(operation_id, two) for _ in range(5)] == ["queued"] * 4 + ["unresolved"]
    review.resume(till.database, operation_id, "only", "ada", "it was down")
    assert till.run(operation_id, two) == "succeeded"
    assert till.effect(operation_id, "deposit") == deposit
    keys = [key for key, _ in till.wire]
    assert keys[0] == deposit["provider_key"]
    assert keys.count(keys[0]) == keys.count(keys[1]) == 1  # neither is ever sent again
    assert len(set(till.wire[2:])) == 1  # the new generation: one key, kept by the resume
    assert till.effect(operation_id, "rest")["provider_key"] == keys[2]
    assert [payment["amount"] for payment in till.bank.ledger()] == [100, 1430]


def test_case_61_the_stored_bytes_are_sent_although_the_request_is_built_otherwise_now(till: Till) -> None:
    operation_id = single(till)
    till.next("drop_before_commit")
    old, new = ({**PAY, "description": text} for text in ("Invoice 1", "Invoice no. 1"))
    assert till.run(operation_id, one_effect(till.provider, old)) == "queued"
    assert till.run(operation_id, one_effect(till.provider, new)) == "succeeded"
    till.check_wire(requests=2)
    assert "Invoice+no" not in till.wire[1][1]


def test_case_61_another_effect_under_the_same_name_is_not_sent(till: Till) -> None:
    operation_id = single(till)
    till.next("drop_before_commit")
    assert till.run(operation_id) == "queued"
    assert till.run(operation_id, one_effect(till.provider, {**PAY, "amount": 9999})) == "unresolved"
    till.check_wire(requests=1, paid=0)
