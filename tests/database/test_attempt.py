"""Attempts whose statements are refused, lost or in doubt: what is repeated, what is read back, what is charged."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from shared import relay, steps
from shared.attempt import Attempt
from shared.database_errors import SerializationError
from shared.errors import UnavailableError
from shared.problems import problem_of
from shared.step_context import StepContext
from tests.database.line import MARK, Counted, Line, held, refusals, refuse_once, settled_once
from tests.database.rival import wait_until_blocked
from tests.effects.till import PAY, Till
from tests.http.proxy import Lose

CONFLICTS = {"40001": "serialization_failure", "40P01": "deadlock_detected"}
PLACES = {
    "claim": ("steps", "UPDATE ON FOR EACH ROW WHEN (NEW.state = 'running' AND OLD.state = 'queued')"),
    "settle": ("steps", "UPDATE ON FOR EACH ROW WHEN (NEW.state = 'succeeded' AND OLD.state = 'running')"),
    "outbox row of the next step": ("outbox", "INSERT ON FOR EACH ROW WHEN (NEW.step = 'second')"),
}


@pytest.mark.parametrize("sqlstate", CONFLICTS)
@pytest.mark.parametrize("place", PLACES)
def test_case_19_a_statement_that_lost_a_conflict_is_repeated_and_the_handler_is_not(
    line: Line, place: str, sqlstate: str
) -> None:
    accepted = line.accept("test.line")
    refuse_once(line, PLACES[place], sqlstate)
    handler = Counted()
    assert line.through_proxy(accepted.due[0], handler).outcome == "succeeded"
    assert (refusals(line), handler.runs) == (2, 1)
    settled_once(line, accepted.operation_id)


@pytest.mark.parametrize("sqlstate", CONFLICTS)
def test_case_19_a_relay_that_lost_a_conflict_leases_its_rows_all_the_same(line: Line, sqlstate: str) -> None:
    accepted = line.accept("test.line")
    line.query("UPDATE outbox SET publish_after = now()")
    refuse_once(line, ("outbox", "UPDATE ON FOR EACH ROW"), sqlstate)
    assert [one.operation_id for one in relay.lease_due_rows(line.through, line.pipeline)] == [accepted.operation_id]
    assert refusals(line) >= 2


@pytest.mark.parametrize("sqlstate", CONFLICTS)
def test_case_19_the_handler_of_a_transaction_that_lost_a_conflict_runs_again_and_its_effect_does_not(
    till: Till, sqlstate: str
) -> None:
    operation_id = till.accept().operation_id
    refuse_once(till, PLACES["settle"], sqlstate)

    def pay(ctx: StepContext) -> None:
        ctx.effect("payment", till.provider, PAY)
        ctx.transaction()

    handler = Counted(pay)
    assert till.run(operation_id, handler) == "succeeded"
    assert (handler.runs, handler.first) == (2, [True, False])
    till.check_wire(requests=1)
    assert till.query("SELECT attempt, failures FROM steps") == [[1, 1]]
    assert till.query("SELECT outcome FROM attempts") == [["succeeded"]]


@pytest.mark.parametrize("table", ["steps", "effects"])
@pytest.mark.parametrize("sqlstate", CONFLICTS)
def test_case_19_an_effect_statement_that_lost_a_conflict_is_repeated_and_the_effect_is_not(
    till: Till, table: str, sqlstate: str
) -> None:
    operation_id = till.accept().operation_id
    when = {
        "steps": "UPDATE ON FOR EACH ROW WHEN (NEW.state = 'running' AND OLD.state = 'running')",  # the permit
        "effects": "UPDATE ON FOR EACH ROW WHEN (NEW.state = 'confirmed')",
    }
    refuse_once(till, (table, when[table]), sqlstate)
    assert till.run(operation_id) == "succeeded"
    till.check_wire(requests=1)
    assert till.effect(operation_id)["permits"] == 1


def test_a_transaction_that_never_wins_is_an_attempt_that_failed(line: Line) -> None:
    accepted = line.accept("test.line")

    def lose(ctx: StepContext) -> None:
        ctx.transaction()
        raise SerializationError

    handler = Counted(lose)
    assert line.through_proxy(accepted.due[0], handler).outcome == "queued"
    assert handler.runs > 1
    assert line.outcomes(accepted.operation_id) == ["retry"]


@pytest.mark.parametrize("lose", Lose)
@pytest.mark.parametrize("times", [1, 3])
def test_case_32_a_settle_that_was_lost_or_whose_answer_was_is_settled_once(line: Line, lose: Lose, times: int) -> None:
    accepted = line.accept("test.line")
    line.proxy.lose(MARK.encode(), lose, times)
    handler = Counted()
    delivery = line.through_proxy(accepted.due[0], handler)
    assert (delivery.outcome, delivery.result) == ("succeeded", {"mark": MARK})
    assert (line.proxy.lost, handler.runs) == (times, 1)
    settled_once(line, accepted.operation_id)
    assert [one.step for one in line.published] == ["second"]  # its writer hands it over, read back or not


@pytest.mark.parametrize("lose", Lose)
def test_case_32_a_transaction_whose_commit_was_lost_is_read_back_or_run_again(line: Line, lose: Lose) -> None:
    accepted = line.accept("test.line")
    line.proxy.lose(b"COMMIT", lose)
    handler = Counted(lambda ctx: ctx.transaction())
    assert line.through_proxy(accepted.due[0], handler).outcome == "succeeded"
    assert (line.proxy.lost, handler.runs) == (1, 1 if lose is Lose.ANSWER else 2)
    settled_once(line, accepted.operation_id)
    assert [one.step for one in line.published] == ["second"]


def test_case_32_a_settle_waits_for_the_transaction_in_doubt(line: Line) -> None:
    """The backend of the lost connection has not noticed yet: the repetition waits for it, and finds it settled."""
    accepted = line.accept("test.line")
    claim = line.claimed(accepted.due[0])
    with ThreadPoolExecutor(1) as pool, line.database.transaction() as in_doubt:
        steps.succeed(in_doubt, claim, {"mark": MARK})
        attempt = Attempt(claim, StepContext(claim, line.through), Counted(), line.outbox)
        again = pool.submit(attempt.run)
        wait_until_blocked(line)
        assert not again.done()
        in_doubt.connection.execute("COMMIT")
        in_doubt.connection.execute("BEGIN")
        settled = again.result(30)
    assert (settled.state, [one.step for one in settled.due]) == ("succeeded", ["second"])
    settled_once(line, accepted.operation_id)


def test_case_32_a_settle_waits_out_a_database_that_is_away_for_a_moment(line: Line) -> None:
    accepted = line.accept("test.line")
    handler = Counted(lambda _: line.away())
    assert line.through_proxy(accepted.due[0], handler).outcome == "succeeded"
    assert handler.runs == 1
    settled_once(line, accepted.operation_id)


def test_case_32_a_handler_whose_transaction_died_runs_again_in_its_attempt(line: Line) -> None:
    accepted = line.accept("test.line")

    def work(ctx: StepContext) -> None:
        transaction = ctx.transaction()
        if ctx.first_run:
            line.away()
        transaction.run("hold_step", **held(ctx).guard)

    handler = Counted(work)
    assert line.through_proxy(accepted.due[0], handler).outcome == "succeeded"
    assert handler.runs == 2
    settled_once(line, accepted.operation_id)


@pytest.mark.parametrize("lose", Lose)
def test_case_32_a_failure_that_was_lost_or_whose_answer_was_is_charged_once(line: Line, lose: Lose) -> None:
    accepted = line.accept("test.line")
    line.proxy.lose(b"ValueError", lose)

    def fail(_: StepContext) -> dict[str, Any]:
        raise ValueError

    assert line.through_proxy(accepted.due[0], fail).outcome == "queued"
    assert line.proxy.lost == 1
    assert line.outcomes(accepted.operation_id) == ["retry"]
    assert line.query("SELECT failures, dispatch FROM steps WHERE step = 'first'") == [[1, 2]]
    line.check_invariant()


@pytest.mark.parametrize("lose", Lose)
def test_case_32_a_claim_that_was_lost_lands_once_and_one_whose_answer_was_is_reconciles(
    line: Line, lose: Lose
) -> None:
    accepted = line.accept("test.line")
    line.proxy.lose(str(accepted.operation_id).encode(), lose)
    handler = Counted()
    outcome = line.through_proxy(accepted.due[0], handler).outcome
    assert line.proxy.lost == 1
    if lose is Lose.REQUEST:
        assert (outcome, handler.runs) == ("succeeded", 1)
        settled_once(line, accepted.operation_id)
        return
    assert (outcome, handler.runs) == ("busy", 0)  # nobody knows whose claim it was: its lease decides
    line.expire_leases()
    line.reconcile()
    (again,) = line.dispatches(accepted.operation_id)
    assert line.through_proxy(again, handler).outcome == "succeeded"
    assert line.outcomes(accepted.operation_id) == ["abandoned", "succeeded"]


@pytest.mark.parametrize("lose", Lose)
def test_case_32_a_heartbeat_that_was_lost_is_repeated(line: Line, lose: Lose) -> None:
    operation_id, claim = line.start("test.line")
    line.query("UPDATE steps SET lease_expires_at = lease_expires_at - interval '9 seconds' WHERE state = 'running'")
    before = line.value("SELECT lease_expires_at FROM steps WHERE step = 'first'")
    line.proxy.lose(str(operation_id).encode(), lose)
    assert steps.extend(line.through, claim, timedelta(seconds=20)) is False
    assert line.proxy.lost == 1
    assert line.value("SELECT lease_expires_at FROM steps WHERE step = 'first'") > before


def test_case_32_a_confirmation_waits_out_a_database_that_is_away_for_a_moment(line: Line) -> None:
    """What the provider has answered is not asked for again."""
    till = Till(line.database, line.url, line.path.parent)
    accepted = line.accept()
    send = till.provider.send

    def answered(key: str, request: bytes) -> Any:
        outcome = send(key, request)
        line.away()
        return outcome

    till.provider.send = answered  # type: ignore[method-assign]
    handler = Counted(lambda ctx: ctx.effect("effect", till.provider, PAY))
    assert line.through_proxy(accepted.due[0], handler).outcome == "succeeded"
    assert handler.runs == 1
    till.check_wire(requests=1)
    till.close()


@pytest.mark.parametrize(
    "query", ["intend_effect", "read_effect", "permit_send", "account_for_send", "mark_unknown", "confirm_effect"]
)
@pytest.mark.parametrize("lose", Lose)
def test_case_32_an_effect_survives_the_loss_of_any_of_its_statements(line: Line, query: str, lose: Lose) -> None:
    """Either the statement is repeated or the handler is; the provider does it once and under one key."""
    till = Till(line.database, line.url, line.path.parent)
    accepted = line.accept()
    kinds = {"account_for_send": "rate_limited", "mark_unknown": "drop_after_commit"}
    if query in kinds:
        till.next(kinds[query])
    run = line.through.run

    def lossy(name: str, /, **parameters: Any) -> Any:
        if name == query and not line.proxy.lost:
            line.proxy.lose(str(accepted.operation_id).encode(), lose)
        return run(name, **parameters)

    line.through.run = lossy  # type: ignore[method-assign]
    handler = Counted(lambda ctx: ctx.effect("effect", till.provider, PAY))
    due = accepted.due[0]
    for _ in range(3):
        if line.through_proxy(due, handler).outcome == "succeeded":
            break
        due = line.due(accepted.operation_id)
    assert line.proxy.lost == 1
    assert line.states(accepted.operation_id) == {"only": "succeeded"}
    assert till.paid == 1
    assert len(set(till.wire)) == 1
    till.close()


def test_case_32_a_database_that_stays_away_for_a_lease_leaves_the_step_to_reconcile(line: Line) -> None:
    line.path.write_text(line.path.read_text().replace("lease: 60s, timeout: 40s", "lease: 2s, timeout: 1s"))
    line.pipeline = type(line.pipeline).load(line.path)
    accepted = line.accept("test.line")
    handler = Counted(lambda _: line.proxy.refuse(refusing=True))
    with pytest.raises(UnavailableError) as told:
        line.through_proxy(accepted.due[0], handler)
    assert problem_of(told.value).status == 503
    line.proxy.refuse(refusing=False)
    line.expire_leases()
    line.reconcile()
    assert line.outcomes(accepted.operation_id) == ["abandoned"]
    line.check_invariant()
