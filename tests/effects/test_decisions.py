"""The decisions of review on real payments: the dry run tells the truth, each lands once, and all is audited."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from shared import admission, operations, recovery, steps
from shared.duties import lookups
from shared.errors import ConflictError, EchoproofError, InvalidInputError, InvalidRequestError, NotFoundError
from shared.identity import Options
from shared.pipeline import Pipeline
from shared.review import decide, plan, reading
from shared.review.decide import By, Declared, PlanAgedError, RefusedError, Seen
from shared.review.plan import Mode, Plan
from shared.steps import Refusal
from tests.database.kit import drained
from tests.effects.till import PAY, Till

ADA = By("ada@example.com", "the bank is back")


def look(till: Till, operation_id: UUID, mode: Mode = "resume", *renew: str) -> Plan:
    return plan.dry_run(till.database, till.pipeline, operation_id, "only", mode, renew)


def seen(shown: Plan) -> Seen:
    return Seen(shown.generation, shown.ledger_version)


def replay(till: Till, operation_id: UUID, mode: Mode = "resume", *renew: str, by: By = ADA) -> Plan:
    shown = look(till, operation_id, mode, *renew)
    return decide.replay(till.database, till.pipeline, operation_id, "only", seen(shown), by, mode=mode, renew=renew)


def verdicts(shown: Plan) -> list[tuple[str, str]]:
    return [(effect.name, effect.verdict) for effect in shown.effects]


def unresolved(till: Till) -> UUID:
    operation_id = till.accept().operation_id
    till.next(*["drop_before_commit"] * 5)
    assert [till.run(operation_id) for _ in range(5)][-1] == "unresolved"
    return operation_id


def declined(till: Till) -> UUID:
    operation_id = till.accept().operation_id
    till.next("decline")
    assert till.run(operation_id) == "failed"
    return operation_id


def audit(till: Till) -> list[list[object]]:
    return till.query("SELECT actor, action, mode, reason, generation FROM reviews ORDER BY id")


def test_a10_exhausted_inspected_and_replayed_without_a_second_effect(till: Till) -> None:
    operation_id = unresolved(till)
    letter = reading.letters(till.database).items[0]
    assert (letter.operation_id, letter.cause, letter.verdict) == (operation_id, "unresolved", "needs a decision")
    shown = replay(till, operation_id)
    assert verdicts(shown) == [("effect", "resend")]
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=6, paid=1)
    assert reading.letters(till.database).items == ()
    assert audit(till) == [["ada@example.com", "replay", "resume", "the bank is back", 1]]
    before, after = till.query("SELECT before, after FROM reviews")[0]
    assert before == {"state": "unresolved", "generation": 1, "effects": {"effect": "unknown, generation 1"}}
    assert after == {"state": "queued", "generation": 2, "effects": {"effect": "unknown, generation 1"}}


def test_a10_a_payment_that_was_made_is_not_made_again_by_a_replay(till: Till) -> None:
    operation_id = till.accept().operation_id
    till.next(*["drop_after_commit"], *["drop_before_commit"] * 4)
    assert [till.run(operation_id) for _ in range(5)][-1] == "unresolved"
    replay(till, operation_id)
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_a_confirmed_effect_is_skipped_by_a_replay(till: Till) -> None:
    operation_id = till.accept().operation_id

    def fails_after_paying(ctx: Any) -> dict[str, object]:
        till.pay(ctx)
        raise ValueError("the printer is out of paper")

    while till.run(operation_id, fails_after_paying) == "queued":
        pass
    shown = replay(till, operation_id)
    assert [(effect.verdict, effect.why) for effect in shown.effects] == [
        ("skip", "it happened; the saved answer is used")
    ]
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=1)


def test_reconcile_first_sends_nothing_before_the_provider_was_asked(till: Till) -> None:
    operation_id = unresolved(till)
    shown = replay(till, operation_id, "reconcile_first")
    assert verdicts(shown) == [("effect", "blocked")]
    sent = len(till.wire)
    assert till.run(operation_id) == "queued"  # absent, which is proof only when nothing can be under way any more
    assert len(till.wire) == sent
    till.pass_time()
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_case_56_a_new_generation_of_a_refused_effect_has_a_fresh_key(till: Till) -> None:
    operation_id = declined(till)
    assert verdicts(look(till, operation_id)) == [("effect", "blocked")]
    shown = replay(till, operation_id, "new_generation", "effect")
    assert verdicts(shown) == [("effect", "resend")]
    assert till.run(operation_id) == "succeeded"
    assert len({key for key, _ in till.wire}) == 2
    assert till.paid == 1


def renewed_and_unresolved(till: Till) -> UUID:
    """An effect whose key is spent and that is proved not to have happened, renewed; the fresh key has no answer."""
    operation_id = declined(till)
    till.query("UPDATE effects SET state = 'not_sent', key_spent = true")
    replay(till, operation_id, "new_generation", "effect")
    till.next(*["drop_before_commit"] * 5)
    assert [till.run(operation_id) for _ in range(5)][-1] == "unresolved"
    return operation_id


@pytest.mark.parametrize("after_a_restore", [False, True])
def test_an_earlier_generation_that_did_not_happen_is_not_made_unknown_again(
    till: Till, *, after_a_restore: bool
) -> None:
    operation_id = renewed_and_unresolved(till)
    if after_a_restore:
        recovery.begin(till.database)
    replay(till, operation_id, "resume" if after_a_restore else "reconcile_first")
    assert till.query("SELECT generation, state FROM effects ORDER BY 1") == [[1, "not_sent"], [2, "unknown"]]
    till.run(operation_id)
    till.pass_time()
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_a_generation_approved_in_recovery_is_looked_up_before_it_is_sent(till: Till) -> None:
    operation_id = declined(till)
    recovery.begin(till.database)
    replay(till, operation_id, "new_generation", "effect")
    sent = len(till.wire)
    assert till.run(operation_id) == "queued"
    assert (len(till.wire), till.effect(operation_id)["lookups"]) == (sent, 1)
    till.pass_time()
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_a_late_answer_to_an_earlier_generation_leaves_the_open_one_to_be_resolved(till: Till) -> None:
    operation_id = renewed_and_unresolved(till)
    till.query("UPDATE effects SET state = 'confirmed', confirmed_at = now(), response = '{}' WHERE generation = 1")
    shown = look(till, operation_id)
    assert [(effect.generation, effect.verdict) for effect in shown.effects] == [(2, "blocked")]
    assert shown.open_effects == ("effect",)
    replay(till, operation_id)
    assert till.run(operation_id) == "unresolved"
    decide.resolve(
        till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA,
        effects={"effect": Declared(happened=False)},
    )  # fmt: skip
    assert verdicts(replay(till, operation_id)) == [("effect", "skip")]
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 0


@pytest.mark.parametrize(
    ("make", "renewed", "why"),
    [
        (unresolved, ["effect"], "may have happened"),
        (declined, [], "name the effects"),
        (declined, ["another"], "no effect another"),
    ],
)
def test_a_new_generation_is_refused_where_it_could_double(
    till: Till, make: object, renewed: list[str], why: str
) -> None:
    operation_id = make(till)  # type: ignore[operator]
    shown = look(till, operation_id, "new_generation", *renewed)
    assert shown.refusal is not None
    assert why in shown.refusal
    with pytest.raises(RefusedError, match=why):
        replay(till, operation_id, "new_generation", *renewed)
    assert till.value("SELECT count(*) FROM reviews") == 0
    assert till.value("SELECT max(generation) FROM effects") == 1


def test_case_44_two_operators_replay_at_once_and_one_run_starts_after_success_409(till: Till) -> None:
    operation_id = unresolved(till)
    shown = look(till, operation_id)
    barrier = threading.Barrier(4)

    def press(number: int) -> str:
        barrier.wait()
        try:
            decide.replay(
                till.database, till.pipeline, operation_id, "only", seen(shown), By(f"operator {number}", "go on")
            )
        except ConflictError as error:
            return type(error).__name__
        return "replayed"

    with ThreadPoolExecutor(4) as threads:
        pressed = sorted(threads.map(press, range(4)))
    assert pressed == ["RefusedError", "RefusedError", "RefusedError", "replayed"]
    assert len(till.dispatches(operation_id)) == 1
    assert till.run(operation_id) == "succeeded"
    with pytest.raises(RefusedError, match="the step is succeeded"):
        decide.replay(till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA)
    assert till.value("SELECT count(*) FROM reviews") == 1


def test_case_63_a_dry_run_that_has_aged_is_refused(till: Till) -> None:
    operation_id = unresolved(till)
    shown = look(till, operation_id)
    till.look_up()
    till.next("drop_before_commit")
    till.run(operation_id)
    till.query("UPDATE steps SET lookups = 99")
    while till.states(operation_id)["only"] == "queued":
        till.next("drop_before_commit")
        till.run(operation_id)
    with pytest.raises(PlanAgedError):
        decide.replay(till.database, till.pipeline, operation_id, "only", seen(shown), ADA)
    with pytest.raises(PlanAgedError):
        decide.discard(till.database, till.pipeline, operation_id, "only", seen(shown), ADA)
    assert till.value("SELECT count(*) FROM reviews") == 0


def test_case_43_a_replay_runs_as_a_new_attempt_and_the_old_message_starts_nothing(till: Till) -> None:
    operation_id = till.accept().operation_id
    old = till.due(operation_id)
    held = till.claimed(old)
    till.fail(held, steps.Outcome.FAILED)
    replay(till, operation_id)
    assert till.refusal(old) is Refusal.STALE
    assert till.run(operation_id) == "succeeded"
    assert till.value("SELECT attempt FROM steps") == 2


def test_case_45_a_step_that_the_pipeline_no_longer_has_is_incompatible(till: Till, tmp_path: Path) -> None:
    operation_id = unresolved(till)
    renamed = tmp_path / "renamed.yaml"
    renamed.write_text(till.path.read_text().replace("only:", "renamed:"))
    later = Pipeline.load(renamed)
    shown = plan.dry_run(till.database, later, operation_id, "only")
    assert shown.refusal == "incompatible: pipeline.yaml no longer has the step test.single/only"
    with pytest.raises(RefusedError, match="incompatible"):
        decide.replay(till.database, later, operation_id, "only", seen(shown), ADA)


def test_case_45_an_input_that_the_code_no_longer_takes_is_incompatible_after_a_replay(till: Till) -> None:
    def takes_more(_: object) -> dict[str, object]:
        raise InvalidInputError("currency: is missing")

    fresh = till.accept().operation_id
    assert till.run(fresh, takes_more) == "failed"  # the caller's mistake
    operation_id = unresolved(till)
    replay(till, operation_id)
    till.query("UPDATE effects SET state = 'not_sent', unaccounted = 0, unknown_since = NULL")
    assert till.run(operation_id, takes_more) == "exhausted"
    letter = reading.letters(till.database).items[0]
    assert (letter.cause, letter.error) == ("incompatible", "currency: is missing")
    replay(till, operation_id)  # the code takes it again
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_case_46_a_replay_waits_while_a_newer_operation_of_its_ordering_key_is_under_way(till: Till) -> None:
    till.next("decline")
    older, newer = (
        till.accept(options=Options(ordering_key="account-7")).operation_id,
        till.accept(options=Options(ordering_key="account-7")).operation_id,
    )
    admission.admit(till.outbox, till.pipeline, "shop")
    assert till.run(older) == "failed"
    assert till.states(newer) == {"only": "queued"}
    shown = look(till, older)
    assert shown.refusal == f"operation {newer} of the same ordering key is requested: replay when it has ended"
    with pytest.raises(RefusedError, match="same ordering key"):
        replay(till, older)
    assert till.run(newer) == "succeeded"
    replay(till, older, "new_generation", "effect")
    assert till.run(older) == "succeeded"
    assert till.paid == 2


def test_case_46_a_resolve_starts_nothing_beside_a_newer_operation_of_its_ordering_key(till: Till) -> None:
    key = Options(ordering_key="account-7")
    older, newer = (till.accept("test.line", options=key).operation_id for _ in range(2))
    admission.admit(till.outbox, till.pipeline, "shop")
    till.fail(till.claimed(till.due(older)), steps.Outcome.FAILED)
    admission.admit(till.outbox, till.pipeline, "shop")

    def resolve(operation_id: UUID, step: str) -> None:
        shown = plan.dry_run(till.database, till.pipeline, operation_id, step)
        decide.resolve(till.database, till.pipeline, operation_id, step, seen(shown), ADA)

    with pytest.raises(RefusedError, match=f"operation {newer} of the same ordering key is requested"):
        resolve(older, "first")
    assert till.states(older) == {"first": "failed", "second": "waiting"}
    operations.cancel(till.database, "shop", newer)
    resolve(older, "first")
    assert till.states(older) == {"first": "succeeded", "second": "queued"}


def test_case_60_a_letter_that_was_closed_opens_again_when_the_step_exhausts(till: Till) -> None:
    operation_id = declined(till)
    replay(till, operation_id, "new_generation", "effect")
    held = till.claimed(till.due(operation_id))
    till.query(
        "INSERT INTO dead_letters (operation_id, step, generation, cause, state, closed_at, closed_reason)"
        f" VALUES ('{operation_id}', 'only', 2, 'undelivered', 'closed', now(), 'discarded')"
    )
    till.fail(held, steps.Outcome.UNRESOLVED)
    assert till.query("SELECT state, cause FROM dead_letters WHERE generation = 2") == [["open", "unresolved"]]


def test_a_resolve_with_evidence_finishes_the_step_and_confirms_its_effect(till: Till) -> None:
    operation_id = unresolved(till)
    shown = look(till, operation_id)
    by = By("ada@example.com", "seen in the bank's statement of today, line 7")
    with pytest.raises(RefusedError, match="whether it happened: effect"):
        decide.resolve(till.database, till.pipeline, operation_id, "only", seen(shown), by)
    decide.resolve(
        till.database, till.pipeline, operation_id, "only", seen(shown), by,
        result={"collected_pence": 1530},
        effects={"effect": Declared(happened=True, reference="pi_7", response={"amount": 1530})},
    )  # fmt: skip
    assert till.query("SELECT state, evidence, reference FROM effects") == [["confirmed", "review", "pi_7"]]
    assert till.operation_state(operation_id) == "succeeded"
    assert till.value("SELECT count(*) FROM dead_letters WHERE state = 'open'") == 0
    assert audit(till) == [["ada@example.com", "resolve", None, "seen in the bank's statement of today, line 7", 1]]


def test_evidence_that_an_effect_did_not_happen_lets_a_replay_send_it(till: Till) -> None:
    operation_id = unresolved(till)
    decide.resolve(
        till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA,
        effects={"effect": Declared(happened=False)},
    )  # fmt: skip
    assert till.effect(operation_id)["state"] == "not_sent"
    assert till.states(operation_id) == {"only": "unresolved"}
    assert verdicts(replay(till, operation_id)) == [("effect", "resend")]
    assert till.run(operation_id) == "succeeded"
    assert till.paid == 1


def test_what_a_person_says_a_provider_answered_is_what_the_handler_reads(till: Till) -> None:
    operation_id = till.accept().operation_id

    def pays_twice(ctx: Any) -> dict[str, Any]:
        first = ctx.effect("first", till.provider, PAY)
        return {"amounts": [first["amount"], ctx.effect("second", till.provider, PAY | {"amount": 20})["amount"]]}

    till.next(*["drop_before_commit"] * 5)
    while till.run(operation_id, pays_twice) == "queued":
        pass
    till.query(
        "INSERT INTO effects (operation_id, step, name, provider, state, provider_key, request, essence,"
        " unaccounted, unknown_since)"
        " SELECT operation_id, step, 'second', provider, 'unknown', 'another', request, essence, 1, now()"
        f" FROM effects WHERE operation_id = '{operation_id}'"
    )
    shown = look(till, operation_id)
    said = {
        "first": Declared(happened=True, reference="pi_7", response={"amount": 1530}),
        "second": Declared(happened=False),
    }
    decide.resolve(till.database, till.pipeline, operation_id, "only", seen(shown), ADA, effects=said)
    till.query(f"DELETE FROM effects WHERE operation_id = '{operation_id}' AND name = 'second'")
    replay(till, operation_id)
    assert till.run(operation_id, pays_twice) == "succeeded"
    assert till.value("SELECT result FROM steps") == {"amounts": [1530, 20]}


def test_a_resolve_starts_the_steps_that_need_this_one(till: Till) -> None:
    accepted = till.accept("test.line")
    till.fail(till.claimed(accepted.due[0]), steps.Outcome.FAILED)
    shown = plan.dry_run(till.database, till.pipeline, accepted.operation_id, "first")
    decide.resolve(
        till.database, till.pipeline, accepted.operation_id, "first", seen(shown), ADA, result={"by": "hand"}
    )
    assert till.states(accepted.operation_id) == {"first": "succeeded", "second": "queued"}
    held = till.claimed(till.due(accepted.operation_id))
    assert held.results == {"first": {"by": "hand"}}
    till.check_invariant()


def test_discarding_gives_up_and_closes_the_letter(till: Till) -> None:
    operation_id = unresolved(till)
    decide.discard(till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA)
    assert till.operation_state(operation_id) == "failed"
    assert till.value("SELECT count(*) FROM dead_letters WHERE state = 'open'") == 0
    assert till.effect(operation_id)["state"] == "unknown"
    assert till.database.run("effects_pulse")[0].unknown == 0  # nobody can do anything about it any more
    assert drained(lookups.batches, till.outbox, till.pipeline) == {"looked_up": 0}
    with pytest.raises(RefusedError, match="the step is discarded"):
        decide.discard(till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA)


def test_a_step_that_is_under_way_is_left_alone(till: Till) -> None:
    operation_id = till.accept().operation_id
    shown = look(till, operation_id)
    assert shown.refusal is not None
    for act in (decide.replay, decide.discard, decide.resolve):
        with pytest.raises(RefusedError, match="the step is queued"):
            act(till.database, till.pipeline, operation_id, "only", seen(shown), ADA)
    with pytest.raises(NotFoundError):
        look(till, uuid4())


def test_an_overdue_operation_is_replayed_only_when_its_deadline_is_lifted(till: Till) -> None:
    operation_id = unresolved(till)
    till.query("UPDATE operations SET deadline = now() - interval '1 hour'")
    assert look(till, operation_id).refusal == "the operation's deadline has passed: lift it with the replay"
    shown = plan.dry_run(till.database, till.pipeline, operation_id, "only", lift_deadline=True)
    assert shown.refusal is None
    decide.replay(till.database, till.pipeline, operation_id, "only", seen(shown), ADA, lift_deadline=True)
    before, after = till.query("SELECT before::jsonb ->> 'deadline', after::jsonb -> 'deadline' FROM reviews")[0]
    assert datetime.fromisoformat(before) < datetime.now(UTC)
    assert after is None
    assert till.run(operation_id) == "succeeded"


def test_a_decision_needs_a_reason_and_its_text_is_made_storable(till: Till) -> None:
    for reason in ("", "  \n", "\x00"):
        with pytest.raises(InvalidRequestError):
            By("ada", reason)
    operation_id = unresolved(till)
    hostile = By("ada\x00\x1b[31m", "<script>\x00\ud800 \\u0000 " + "x" * 100_000)
    decide.note(till.database, hostile, operation_id=operation_id, step="only")
    actor, _, _, text, _ = audit(till)[0]
    assert actor == "ada[31m"
    assert str(text).startswith("<script> \\u0000 xxx")
    assert len(str(text)) == decide.MAX_REASON


def test_notes_stand_beside_operations_and_letters(till: Till) -> None:
    operation_id = unresolved(till)
    letter = reading.letters(till.database).items[0]
    decide.note(till.database, ADA, operation_id=operation_id)
    decide.note(till.database, ADA, dead_letter_id=letter.id)
    notes = reading.operation(till.database, till.pipeline, operation_id)["reviews"]
    assert [note["action"] for note in notes] == ["note", "note"]
    assert len(reading.letter(till.database, letter.id)["reviews"]) == 1
    with pytest.raises(NotFoundError):
        decide.note(till.database, ADA, operation_id=uuid4())


def test_a_bulk_decision_reports_each_item_and_one_that_fails_stops_no_other(till: Till) -> None:
    resting = [unresolved(till) for _ in range(3)]
    done = till.accept().operation_id
    till.run(done)

    def act(operation_id: UUID) -> None:
        decide.replay(till.database, till.pipeline, operation_id, "only", seen(look(till, operation_id)), ADA)

    report = decide.each([resting[0], done, *resting[1:]], act)
    assert [item.error for item in report] == [None, "the step is succeeded", None, None]


def test_whatever_is_pressed_in_whatever_order_pays_once(till: Till) -> None:
    operation_id = unresolved(till)
    presses: list[Callable[[], object]] = [
        lambda: replay(till, operation_id),
        lambda: replay(till, operation_id, "reconcile_first"),
        lambda: replay(till, operation_id, "new_generation", "effect"),
        lambda: till.run(operation_id),
        lambda: till.look_up(),
    ]
    for round_ in range(4):
        for press in presses[round_ % 2 :] + presses[: round_ % 2]:
            try:
                press()
            except (EchoproofError, ValueError):  # nothing is due
                continue
    assert till.paid <= 1
    till.check_invariant()
