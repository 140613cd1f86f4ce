"""What bounds an attempt: connections that are not there, timeouts, shutdowns, and attempts that were overtaken."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from urllib.parse import urlsplit

import pytest

from shared import reconcile, steps
from shared.database import Database, connector
from shared.errors import LeaseLostError, UnavailableError
from shared.outbox import Outbox
from shared.problems import problem_of
from shared.steps import Outcome, Refusal
from tests.database.kit import Kit
from tests.database.line import Counted, Line, Noting, settled_once


def test_case_33_without_a_connection_a_delivery_is_told_to_come_back_and_charges_nothing(line: Line) -> None:
    """Fewer connections than the pools of all instances want: the server refuses (53300)."""
    role = f"few_{line.value('SELECT current_database()')}"
    line.query(f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 1 IN ROLE echoproof_every_step")
    url = urlsplit(line.url)._replace(netloc=f"{role}@127.0.0.1:{urlsplit(line.url).port}").geturl()
    other, line.through = connector(url)(), Database(connector(url), size=2)
    accepted = line.accept("test.line")
    try:
        with pytest.raises(UnavailableError) as told:
            line.through_proxy(accepted.due[0], Counted())
        assert problem_of(told.value).status == 503
        assert line.query("SELECT attempt, failures FROM steps WHERE step = 'first'") == [[0, 0]]
        assert line.dispatches(accepted.operation_id) == accepted.due
        other.close()
        line.through.close()
        wait_until(lambda: line.value(f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'") == 0)
        assert line.through_proxy(accepted.due[0], Counted()).outcome == "succeeded"
    finally:
        line.through.close()
        line.query(f"DROP ROLE {role}")
    settled_once(line, accepted.operation_id)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_case_58_the_lease_of_a_handler_that_hangs_ends_at_its_timeout(kit: Kit) -> None:
    operation_id, claim = kit.start()
    margin = timedelta(seconds=20)
    ends = claim.policy.timeout + margin
    longest = f"attempt_started_at + interval '{ends.total_seconds()} seconds'"
    kit.query(
        "UPDATE steps SET attempt_started_at = attempt_started_at - interval '50 seconds', "
        "lease_expires_at = lease_expires_at - interval '50 seconds'"
    )
    for _ in range(3):  # its heartbeat is alive
        steps.extend(kit.database, claim, margin)
        assert kit.value(f"SELECT lease_expires_at <= {longest} FROM steps")
    kit.query(
        "UPDATE steps SET attempt_started_at = attempt_started_at - interval '11 seconds', "
        "lease_expires_at = lease_expires_at - interval '11 seconds'"
    )
    steps.extend(kit.database, claim, margin)
    assert kit.value("SELECT lease_expires_at < now() FROM steps")  # a beat does not bring it back
    reconcile.run_once(Outbox(kit.database, kit.pipeline, Noting([])), kit.pipeline)
    assert kit.states(operation_id) == {"only": "queued"}
    with pytest.raises(LeaseLostError):
        steps.extend(kit.database, claim, margin)
    with pytest.raises(LeaseLostError):
        steps.succeed(kit.database, claim, None)


def test_case_59_a_shutdown_costs_no_budget_and_attempt_numbers_never_repeat(kit: Kit) -> None:
    accepted = kit.accept()
    for attempt in range(1, 9):  # three may fail
        claim = kit.claimed(kit.dispatches(accepted.operation_id)[0])
        assert (claim.attempt, claim.failures, claim.waits) == (attempt, 1, 0)
        assert kit.fail(claim, Outcome.HANDED_BACK) == "queued"
        with pytest.raises(LeaseLostError):
            steps.succeed(kit.database, claim, None)
        assert kit.query("SELECT failures, waits, dispatch, error_kind FROM steps") == [
            [0, 0, attempt + 1, "TestError"]
        ]
    assert kit.query("SELECT count(DISTINCT attempt), min(outcome), max(outcome) FROM attempts") == [
        [8, "handed_back", "handed_back"]
    ]
    kit.check_invariant()
    assert kit.fail(kit.claimed(kit.dispatches(accepted.operation_id)[0])) == "queued"
    assert kit.value("SELECT failures FROM steps") == 1


def test_a_step_handed_back_after_a_cancel_is_cancelled(kit: Kit) -> None:
    accepted = kit.accept()
    claim = kit.claimed(accepted.due[0])
    kit.query("UPDATE steps SET cancel_requested_at = now()")
    assert kit.fail(claim, Outcome.HANDED_BACK) == "queued"
    assert kit.refusal(kit.dispatches(accepted.operation_id)[0]) is Refusal.CANCELLED


def test_an_attempt_that_was_overtaken_reads_nothing_back(kit: Kit) -> None:
    _, claim = kit.start()
    assert steps.read_back(kit.database, claim) is None
    kit.fail(claim, Outcome.HANDED_BACK)
    assert steps.read_back(kit.database, claim) is None
