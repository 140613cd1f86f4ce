"""What a review may do: renew an effect that did not happen, resume a step that rests; each lands once or says no."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from shared import effects, queries, review, steps
from shared.errors import ConflictError, NotFoundError
from tests.effects.till import Till

BY = ("ada", "the bank said so")
REPOSITORY = Path(__file__).parents[2]


def declined(till: Till) -> UUID:
    operation_id = till.accept().operation_id
    till.next("decline")
    assert till.run(operation_id) == "failed"
    return operation_id


def renew(till: Till, operation_id: UUID) -> int:
    return review.renew_effect(till.database, operation_id, "only", "effect", *BY)


def resume(till: Till, operation_id: UUID) -> object:
    return review.resume(till.database, operation_id, "only", *BY)


def landed(*actions: Callable[[], object]) -> list[bool]:
    """Run actions at once and say which landed."""
    barrier, results = threading.Barrier(len(actions)), [False] * len(actions)

    def act(number: int) -> None:
        barrier.wait()
        try:
            actions[number]()
            results[number] = True
        except ConflictError:
            pass

    threads = [threading.Thread(target=act, args=(number,)) for number in range(len(actions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_a_renewed_effect_is_sent_under_the_key_of_its_generation(till: Till) -> None:
    operation_id = declined(till)
    assert renew(till, operation_id) == 2
    row = till.effect(operation_id)
    key = till.value(f"SELECT key FROM operations WHERE id = '{operation_id}'")
    assert row["state"] == "approved"
    assert row["reason"] == "renewed by ada: the bank said so"
    assert row["provider_key"] == effects.provider_key("shop", "test.single", key, "only", "effect", 2)
    resume(till, operation_id)
    assert till.run(operation_id) == "succeeded"
    assert [key for key, _ in till.wire][1] == row["provider_key"]
    assert till.operation_state(operation_id) == "succeeded"


def test_a_confirmed_open_or_renewed_effect_is_not_renewed(till: Till) -> None:
    paid = till.accept().operation_id
    till.run(paid)
    with pytest.raises(review.NotRenewableError, match="confirmed"):
        renew(till, paid)
    unknown = till.accept().operation_id
    till.next(*["drop_before_commit"] * 5)
    assert [till.run(unknown) for _ in range(5)][-1] == "unresolved"
    with pytest.raises(review.NotRenewableError, match="unknown"):
        renew(till, unknown)
    twice = declined(till)
    renew(till, twice)
    with pytest.raises(review.NotRenewableError, match="approved"):
        renew(till, twice)
    with pytest.raises(NotFoundError):
        review.renew_effect(till.database, twice, "only", "another", *BY)
    assert till.value("SELECT count(*) FROM effects WHERE generation > 1") == 1


def test_an_intended_effect_and_one_of_a_step_that_does_not_rest_are_not_renewed(till: Till) -> None:
    operation_id = till.accept().operation_id
    till.next("rate_limited")
    assert till.run(operation_id) == "queued"
    assert till.effect(operation_id)["state"] == "not_sent"
    with pytest.raises(review.NotRenewableError):  # its next attempt may be about to send
        renew(till, operation_id)
    held = till.claimed(till.due(operation_id))
    with pytest.raises(review.NotRenewableError):
        renew(till, operation_id)
    till.query("UPDATE effects SET state = 'intended'")
    assert till.fail(held, steps.Outcome.FAILED) == "unresolved"
    with pytest.raises(review.NotRenewableError, match="intended"):
        renew(till, operation_id)


def test_of_two_who_renew_at_once_one_lands(till: Till) -> None:
    operation_id = declined(till)
    assert sorted(landed(*[lambda: renew(till, operation_id)] * 4)) == [False, False, False, True]
    assert till.value("SELECT count(*) FROM effects") == 2


def test_case_44_of_two_who_resume_at_once_one_lands_and_one_run_starts(till: Till) -> None:
    operation_id = declined(till)
    assert sorted(landed(*[lambda: resume(till, operation_id)] * 4)) == [False, False, False, True]
    assert len(till.dispatches(operation_id)) == 1
    till.check_invariant()


@pytest.mark.parametrize("end", ["unresolved", "exhausted", "failed"])
def test_a_step_that_rests_is_resumed_with_its_whole_budget(till: Till, end: str) -> None:
    operation_id, held = till.start()
    till.query("UPDATE steps SET failures = 5, waits = 7, lookups = 3")
    outcome = steps.Outcome.RETRY if end == "exhausted" else steps.Outcome(end)
    assert till.fail(held, outcome) == end
    resume(till, operation_id)
    columns = "state, generation, dispatch, attempt, fence, failures, waits, lookups, error_kind"
    assert till.query(f"SELECT {columns} FROM steps") == [["queued", 2, 2, 1, 1, 0, 0, 0, None]]
    assert till.operation_state(operation_id) == "running"
    rows = [] if end == "failed" else [["closed", "resumed by ada: the bank said so"]]
    assert till.query("SELECT state, closed_reason FROM dead_letters") == rows
    till.check_invariant()
    assert till.run(operation_id) == "succeeded"


def test_a_step_that_does_not_rest_is_not_resumed(till: Till) -> None:
    operation_id = till.accept().operation_id
    with pytest.raises(review.NotResumableError):
        resume(till, operation_id)
    assert till.run(operation_id) == "succeeded"
    with pytest.raises(review.NotResumableError):  # after success: 409
        resume(till, operation_id)
    assert till.value("SELECT generation FROM steps") == 1


def test_only_the_intention_and_a_review_make_a_row_of_the_ledger() -> None:
    makers = {name for name, query in queries.load().items() if re.search(r"INSERT INTO effects\b", query.sql)}
    assert makers == {"intend_effect", "renew_effect"}
    assert "generation" not in queries.load()["intend_effect"].sql.split("ON CONFLICT")[0]  # always the first
    callers = [
        path.name
        for folder in ("shared", "functions", "local")
        for path in (REPOSITORY / folder).rglob("*.py")
        if 'run("renew_effect"' in path.read_text()
    ]
    assert callers == ["rest.py"]


FAULTS = {
    "drop_before_commit": 0.12, "drop_after_commit": 0.12, "error_unsaved": 0.08, "error_saved": 0.05,
    "error_after_commit": 0.08, "rate_limited": 0.05, "conflict": 0.05, "unauthorised": 0.05, "decline": 0.03,
}  # fmt: skip


def test_no_schedule_of_faults_makes_a_fresh_key(till: Till) -> None:
    chance = random.Random(541909)
    till.bank.faults.rates = FAULTS
    operations = [till.accept().operation_id for _ in range(200)]
    for _ in range(16):  # rounds of whatever is due; a process dies now and then, and hours pass
        for (operation_id,) in till.query("SELECT operation_id FROM outbox"):
            deliver_or_die(till, operation_id, chance)
        till.pass_time(chance.choice([60, 3600, 6 * 3600]))
        till.reconcile()
        for (operation_id,) in till.query("SELECT operation_id FROM steps WHERE state IN ('unresolved', 'exhausted')"):
            if chance.random() < 0.2:
                resume(till, operation_id)
    check_keys(till, operations)


class DeathError(BaseException):
    """The process is gone: nothing after this is executed."""


def deliver_or_die(till: Till, operation_id: UUID, chance: random.Random) -> None:
    """Deliver the due step, which now and then dies after its call: a lease is left behind."""
    original = till.provider.send

    def send(key: str, request: bytes) -> object:
        outcome = original(key, request)
        if chance.random() < 0.1:
            raise DeathError
        return outcome

    till.provider.send = send  # type: ignore[method-assign, assignment]
    try:
        till.run(operation_id)
    except DeathError:
        pass
    finally:
        till.provider.send = original  # type: ignore[method-assign]


def check_keys(till: Till, operations: list[UUID]) -> None:
    """One key an identity on the wire, one payment at most, and exactly one for each that succeeded."""
    rows = till.query("SELECT s.operation_id, s.state, o.key FROM steps s JOIN operations o ON o.id = s.operation_id")
    keys = {effects.provider_key("shop", "test.single", key, "only", "effect", 1): state for _, state, key in rows}
    assert len(keys) == len(operations)
    assert {key for key, _ in till.wire} <= set(keys)
    assert len(set(till.wire)) == len({key for key, _ in till.wire})  # one body a key
    paid = [payment["key"] for payment in till.bank.ledger()]
    assert len(set(paid)) == len(paid)
    assert {key for key, state in keys.items() if state == "succeeded"} <= set(paid)
    failed = {key for key, state in keys.items() if state == "failed"}
    assert failed.isdisjoint(paid)
    states = set(keys.values())
    assert states >= {"succeeded", "failed"}
    assert list(keys.values()).count("succeeded") > 150
    assert till.value("SELECT max(generation) FROM effects") == 1
