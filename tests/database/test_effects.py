"""The ledger's rules, against a provider whose behaviour the test decides and whose effects are counted."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from shared import effects, operations, recovery, steps
from shared.duties import expired_leases, lookups
from shared.effects import ChangedRequestError, EffectRejectedError, EffectUnknownError
from shared.errors import LeaseLostError, RetryLater, Unresolved
from shared.outbox import Outbox
from shared.providers import Absent, Ambiguous, Confirmed, Found, Lookup, NotKnown, NotSent, Outcome, Rejected
from shared.publisher import Publisher
from shared.step_context import OpenEffectError, SettlingTransactionError, StepContext
from shared.steps import Claim
from shared.steps import Outcome as Ended
from tests.database.kit import Kit, drained
from tests.database.test_steps import _unreachable

OK = Confirmed({"paid": 1}, "ref-1")


class Bank:
    """A provider in this process: it keeps real effects by key, and answers what the test says."""

    name = "bank"

    def __init__(self, *, idempotent: bool = True, visibility: timedelta | None = timedelta(0)) -> None:
        self.idempotent = idempotent
        self.horizon = timedelta(hours=24)
        self.visibility = visibility
        self.timeout = timedelta(seconds=2)
        self.effects: list[str] = []
        self.sent: list[tuple[str, bytes]] = []
        self.looked_up: list[str] = []
        self.before: Callable[[], None] = lambda: None
        self.answers: list[Outcome | None] = []  # what is answered after doing it; None: the truth
        self.drop = 0  # requests that do not reach it
        self.lookups: list[Lookup] = []

    def encode(self, request: Any) -> bytes:
        return repr(sorted(request.items())).encode()

    def essence(self, request: bytes) -> bytes:
        return request.split(b"note")[0]

    def send(self, key: str, request: bytes) -> Outcome:
        self.before()
        self.sent.append((key, request))
        if self.drop:
            self.drop -= 1
            return Ambiguous("no answer")
        if not (self.idempotent and key in self.effects):
            self.effects.append(key)
        answer = self.answers.pop(0) if self.answers else None
        return answer or OK

    def lookup(self, key: str, request: bytes) -> Lookup:
        self.looked_up.append(key)
        if self.lookups:
            return self.lookups.pop(0)
        return Found(OK.response, OK.reference) if key in self.effects else Absent()


PAY = {"amount": 100, "currency": "GBP"}


def pay(kit: Kit, held: Claim, bank: Bank, request: dict[str, Any] = PAY, name: str = "payment") -> dict[str, Any]:
    return StepContext(held, kit.database).effect(name, bank, request)


def again(kit: Kit, held: Claim) -> Claim:
    """Let the attempt's process die, and start the next one."""
    kit.expire_leases()
    outbox = Outbox(kit.database, kit.pipeline, Publisher("t", client=_unreachable))
    drained(expired_leases.batches, outbox, kit.pipeline)
    return kit.claimed(kit.dispatches(held.operation_id)[0])


def after_failure(kit: Kit, held: Claim, outcome: Ended = Ended.RETRY) -> Claim:
    assert kit.fail(held, outcome) == "queued"
    return kit.claimed(kit.dispatches(held.operation_id)[0])


def state_of(kit: Kit) -> list[Any]:
    return kit.query("SELECT state, unaccounted, permits FROM effects ORDER BY name, generation DESC")[0]


def age_sends(kit: Kit, seconds: int) -> None:
    kit.query(f"UPDATE effects SET send_deadline = send_deadline - interval '{seconds} seconds'")


def test_an_effect_happens_once_and_its_answer_is_saved(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    assert pay(kit, held, bank) == {"paid": 1}
    assert pay(kit, again(kit, held), bank) == {"paid": 1}
    assert len(bank.sent) == len(bank.effects) == 1
    assert state_of(kit) == ["confirmed", 0, 1]


def test_case_36_a5_a_lost_answer_is_repeated_with_the_identical_key_and_bytes(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    assert state_of(kit) == ["unknown", 1, 1]
    assert pay(kit, after_failure(kit, held), bank) == {"paid": 1}
    assert len(set(bank.sent)) == 1
    assert len(bank.sent) == 2
    assert len(bank.effects) == 1


def test_a5_a_lost_answer_of_a_non_idempotent_provider_is_looked_up_and_not_repeated(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank(idempotent=False)
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    assert pay(kit, after_failure(kit, held), bank) == {"paid": 1}
    assert (len(bank.sent), len(bank.looked_up), len(bank.effects)) == (1, 1, 1)


def test_a8_a_process_that_died_after_the_call_is_recovered_without_a_second_effect(kit: Kit) -> None:
    for idempotent in (True, False):
        _, held = kit.start()
        bank = Bank(idempotent=idempotent)

        def die() -> None:
            raise KeyboardInterrupt

        original = bank.send

        def send_then_die(key: str, request: bytes, original: Callable[..., Any] = original) -> Outcome:
            original(key, request)
            raise KeyboardInterrupt

        bank.send = send_then_die  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            pay(kit, held, bank)
        bank.send = original  # type: ignore[method-assign]
        age_sends(kit, 10)
        assert pay(kit, again(kit, held), bank) == {"paid": 1}
        assert len(bank.effects) == 1


@pytest.mark.parametrize("no", [Rejected("401"), Rejected("parameters differ")])
def test_case_51_a_no_that_follows_an_unaccounted_send_is_looked_up(kit: Kit, no: Rejected) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("connection lost"), no]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    assert pay(kit, after_failure(kit, held), bank) == {"paid": 1}
    assert len(bank.looked_up) == 1
    assert state_of(kit)[0] == "confirmed"


def test_case_51_a_429_that_follows_an_unaccounted_send_is_not_rejected(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("connection lost"), NotSent("429", timedelta(seconds=0))]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    second = after_failure(kit, held)
    with pytest.raises(RetryLater):
        pay(kit, second, bank)
    assert state_of(kit)[:2] == ["unknown", 1]
    assert pay(kit, after_failure(kit, second, Ended.WAIT), bank) == {"paid": 1}
    assert len(bank.effects) == 1


def test_a_first_definite_no_is_rejected_and_never_sent_again(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.answers = [Rejected("card declined")]
    with pytest.raises(EffectRejectedError, match="card declined"):
        pay(kit, held, bank)
    with pytest.raises(EffectRejectedError, match="card declined"):
        pay(kit, again(kit, held), bank)
    assert len(bank.sent) == 1


def test_case_53_absent_is_no_proof_while_a_send_may_still_be_under_way(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank(idempotent=False, visibility=timedelta(seconds=30))
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    second = after_failure(kit, held)
    with pytest.raises(RetryLater) as waited:
        pay(kit, second, bank)
    assert waited.value.after is not None
    assert 20 < waited.value.after.total_seconds() <= 33
    assert len(bank.sent) == 1
    age_sends(kit, 60)
    assert pay(kit, after_failure(kit, second, Ended.WAIT), bank) == {"paid": 1}
    assert len(bank.effects) == 1


def test_case_54_absence_is_measured_from_the_last_permitted_send(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank(visibility=timedelta(seconds=30))
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    age_sends(kit, 60)
    second = after_failure(kit, held)
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, second, bank)  # sends again, and dies without an answer
    bank.idempotent = False  # the third must look up
    with pytest.raises(RetryLater):
        pay(kit, again(kit, second), bank)
    assert len(bank.sent) == 2


def test_a_provider_without_visibility_gives_no_proof_of_absence(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank(idempotent=False, visibility=None)
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    age_sends(kit, 100_000)
    with pytest.raises(Unresolved, match="no proof"):
        pay(kit, after_failure(kit, held), bank)
    assert len(bank.sent) == 1


def test_case_38_past_the_horizon_it_is_looked_up_first_and_proof_restarts_the_key(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    kit.query("UPDATE effects SET key_expires_at = now() - interval '1 hour', send_deadline = now() - interval '1 day'")
    assert pay(kit, after_failure(kit, held), bank) == {"paid": 1}
    assert (len(bank.looked_up), len(bank.sent)) == (1, 2)
    assert len({key for key, _ in bank.sent}) == 1
    assert kit.value("SELECT key_expires_at > now() FROM effects")


def test_case_55_a_key_that_expires_before_the_send_permits_none(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank(visibility=None)
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    second = after_failure(kit, held)
    # within the margin of a call: too late for one more send
    kit.query("UPDATE effects SET key_expires_at = now() + interval '5 seconds'")
    with pytest.raises(Unresolved):
        pay(kit, second, bank)
    assert len(bank.sent) == 1


def test_case_55_a_confirmation_that_lands_between_decision_and_send_is_used(kit: Kit) -> None:
    operation_id, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    second = after_failure(kit, held)
    effect = effects.Effect(kit.database, second, "payment", bank)
    effect._intend(PAY)
    kit.database.run(
        "confirm_effect", provider="payments", operation_id=operation_id, step="only", name="payment", generation=1,
        response='{"paid": "late"}', reference="r", evidence="answer",
    )  # fmt: skip
    assert effect._send() == {"paid": "late"}
    assert len(bank.sent) == 1


def test_no_send_without_the_lease(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    kit.expire_leases()
    with pytest.raises(LeaseLostError):
        pay(kit, held, bank)
    new = again(kit, held)
    with pytest.raises(LeaseLostError):
        pay(kit, held, bank)
    assert bank.sent == []
    assert pay(kit, new, bank) == {"paid": 1}


def test_a_confirmation_is_accepted_from_an_attempt_that_has_lost_its_lease(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.before = kit.expire_leases  # the lease runs out during the call …
    taken: list[Claim] = []
    original = bank.send

    def send(key: str, request: bytes) -> Outcome:
        answer = original(key, request)
        taken.append(again(kit, held))  # … and another attempt takes the step
        return answer

    bank.send = send  # type: ignore[method-assign]
    assert pay(kit, held, bank) == {"paid": 1}
    bank.send = original  # type: ignore[method-assign]
    assert pay(kit, taken[0], bank) == {"paid": 1}
    assert len(bank.sent) == 1


@pytest.mark.parametrize("ending", ["cancel", "permanent", "last attempt", "swallowed", "lease"])
def test_case_52_no_step_ends_over_an_open_effect(kit: Kit, ending: str) -> None:
    operation_id, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    if ending == "cancel":
        assert kit.fail(held) == "queued"
        operations.cancel(kit.database, "shop", operation_id)
    elif ending == "permanent":
        kit.fail(held, Ended.FAILED)
    elif ending == "swallowed":
        assert steps.succeed(kit.database, held, {"done": True}) == ("unresolved", [])
    else:
        kit.query("UPDATE steps SET failures = 3")
        if ending == "lease":
            kit.expire_leases()
            outbox = Outbox(kit.database, kit.pipeline, Publisher("t", client=_unreachable))
            assert drained(expired_leases.batches, outbox, kit.pipeline) == {"requeued": 0, "exhausted": 1}
        else:
            kit.fail(held)
    assert kit.states(operation_id) == {"only": "unresolved"}
    assert kit.operation_state(operation_id) == "needs_review"
    assert kit.query("SELECT cause, state FROM dead_letters") == [["unresolved", "open"]]
    kit.check_invariant()


def test_a_step_with_a_confirmed_effect_is_settled_and_not_cancelled(kit: Kit) -> None:
    operation_id, held = kit.start("test.line")
    bank = Bank()
    pay(kit, held, bank)
    assert kit.fail(held) == "queued"
    operations.cancel(kit.database, "shop", operation_id)
    assert kit.states(operation_id) == {"first": "queued", "second": "cancelled"}
    kit.check_invariant()
    held = kit.claimed(kit.dispatches(operation_id)[0])
    assert pay(kit, held, bank) == {"paid": 1}
    steps.succeed(kit.database, held, None)
    assert kit.operation_state(operation_id) == "cancelled"
    assert len(bank.sent) == 1


def test_a_cancel_while_it_runs_spares_the_next_attempt_of_a_confirmed_effect(kit: Kit) -> None:
    operation_id, held = kit.start()
    bank = Bank()
    pay(kit, held, bank)
    operations.cancel(kit.database, "shop", operation_id)
    assert kit.fail(held) == "queued"
    message = kit.dispatches(operation_id)[0]
    assert kit.refusal(message) is steps.Refusal.EARLY  # spared; the row stays
    kit.check_invariant()
    assert pay(kit, kit.claimed(message), bank) == {"paid": 1}


def test_a_handler_that_swallows_the_error_of_an_effect_does_not_succeed(kit: Kit) -> None:
    _, held = kit.start()
    context = StepContext(held, kit.database)
    bank = Bank()
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        context.effect("payment", bank, PAY)
    with pytest.raises(OpenEffectError):
        context.check_effects()


def test_an_effect_is_refused_inside_the_settling_transaction(kit: Kit) -> None:
    _, held = kit.start()
    context = StepContext(held, kit.database)
    context.transaction()
    with pytest.raises(SettlingTransactionError):
        context.effect("payment", Bank(), PAY)
    context.close(SettlingTransactionError())


def test_case_61_a_rebuilt_request_is_not_sent_and_another_effect_is_stopped(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank, {**PAY, "note": "built by the old release"})
    second = after_failure(kit, held)
    pay(kit, second, bank, {**PAY, "note": "built by the new one"})
    assert len({request for _, request in bank.sent}) == 1
    with pytest.raises(ChangedRequestError):
        pay(kit, second, bank, {**PAY, "amount": 200})


def test_case_39_keys_are_equal_across_attempts_and_distinct_across_steps_effects_and_tenants() -> None:
    base = ("shop", "invoice.generate", "k", "collect", "payment", 1)
    variants = [base] + [(*base[:i], "other" if i < 5 else 2, *base[i + 1 :]) for i in range(6)]
    keys = {effects.provider_key(*variant) for variant in variants}
    assert len(keys) == 7
    assert effects.provider_key(*base) == effects.provider_key(*base)


def test_a_final_ambiguous_answer_is_looked_up_at_once_and_its_key_not_used_again(kit: Kit) -> None:
    _, held = kit.start()
    bank = Bank()
    bank.answers = [Ambiguous("saved 500", final=True)]
    assert pay(kit, held, bank) == {"paid": 1}  # it was done after all
    _, held = kit.start()
    bank = Bank(visibility=timedelta(seconds=-10))
    bank.send = lambda key, request: Ambiguous("saved 500", final=True)  # type: ignore[method-assign]
    with pytest.raises(Unresolved, match="approve a new generation"):
        pay(kit, held, bank)
    assert kit.query("SELECT state FROM effects WHERE state <> 'confirmed'") == [["not_sent"]]


def test_an_unresolved_step_is_queued_again_to_look_up_and_then_succeeds(kit: Kit) -> None:
    operation_id, held = kit.start()
    bank = Bank(idempotent=False)
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    second = after_failure(kit, held)
    bank.lookups = [NotKnown("search is down")]
    with pytest.raises(Unresolved):
        pay(kit, second, bank)
    assert kit.fail(second, Ended.UNRESOLVED) == "unresolved"
    outbox = Outbox(kit.database, kit.pipeline, Publisher("t", client=_unreachable))
    assert drained(lookups.batches, outbox, kit.pipeline)["looked_up"] == 0  # not yet: it pauses first
    kit.query("UPDATE steps SET finished_at = now() - interval '1 minute'")
    assert drained(lookups.batches, outbox, kit.pipeline)["looked_up"] == 1
    third = kit.claimed(kit.dispatches(operation_id)[0])
    assert pay(kit, third, bank) == {"paid": 1}
    steps.succeed(kit.database, third, None)
    assert kit.operation_state(operation_id) == "succeeded"
    assert kit.query("SELECT state FROM dead_letters") == [["closed"]]
    assert len(bank.effects) == 1


def test_lookups_by_reconcile_are_bounded(kit: Kit) -> None:
    operation_id, held = kit.start()
    bank = Bank(idempotent=False)
    bank.answers = [Ambiguous("timeout")]
    with pytest.raises(EffectUnknownError):
        pay(kit, held, bank)
    kit.fail(held, Ended.UNRESOLVED)
    outbox = Outbox(kit.database, kit.pipeline, Publisher("t", client=_unreachable))
    for _ in range(lookups.LOOKUPS):
        kit.query("UPDATE steps SET finished_at = now() - interval '1 day'")
        assert drained(lookups.batches, outbox, kit.pipeline)["looked_up"] == 1
        kit.fail(kit.claimed(kit.dispatches(operation_id)[0]), Ended.UNRESOLVED)
    kit.query("UPDATE steps SET finished_at = now() - interval '1 day'")
    assert drained(lookups.batches, outbox, kit.pipeline)["looked_up"] == 0
    assert kit.states(operation_id) == {"only": "unresolved"}


def test_in_recovery_every_effect_is_looked_up_before_it_is_sent(kit: Kit) -> None:
    bank = Bank()
    _, old = kit.start()
    bank.drop = 1
    with pytest.raises(EffectUnknownError):
        pay(kit, old, bank)
    assert recovery.begin(kit.database) == 1
    with pytest.raises(recovery.RecoveryError):
        recovery.begin(kit.database)
    age_sends(kit, 60)
    pay(kit, after_failure(kit, old), bank)
    assert len(bank.looked_up) == 1
    _, new = kit.start()  # its row may have been lost by the restore
    bank.effects.append(effects.provider_key("shop", "test.single", new.key, "only", "payment", 1))
    sent = len(bank.sent)
    assert pay(kit, new, bank) == {"paid": 1}
    assert len(bank.sent) == sent
    assert recovery.end(kit.database) is True
    assert recovery.end(kit.database) is False
    _, later = kit.start()
    pay(kit, later, bank)
    assert len(bank.looked_up) == 2
