"""Instances that are frozen, told to stop, or killed, beside others that are not: real processes, real signals."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import requests

from local.parts import Part
from shared.publisher import Dispatch
from tests.stack.kit import HERE, PATIENCE, TENANT, Rig, folder_for_all, push

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GRACE = "20s"  # longer than anything that ends within it takes
SHORT = "500ms"
REQUESTS = 60
KILLS = 4
_amounts = itertools.count(100)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with folder_for_all() as folder:
        rig = Rig(folder, HERE / "instances.yaml", "instances")
        try:
            yield rig
            rig.check()
        finally:
            rig.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def accepted(rig: Rig, point: str, kind: str, **given: Any) -> tuple[Dispatch, str]:
    """Accept an operation; return its first message, which nobody has published, and its key."""
    dispatch = rig.accept(point, kind, given)
    return dispatch, rig.query(f"SELECT key FROM operations WHERE id = '{dispatch.operation_id}'")[0][0]


def paid(rig: Rig) -> dict[int, int]:
    """How often each amount was paid, by the provider's own log."""
    ledger = requests.get(f"{rig.stack.addresses.payments}/_control/ledger", timeout=30).json()
    amounts = [payment["amount"] for payment in ledger]
    return {amount: amounts.count(amount) for amount in amounts}


def only(rig: Rig, dispatch: Dispatch) -> dict[str, Any]:
    return rig.step(dispatch.operation_id, "only")


class Waiting:
    """A delivery whose handler waits until it is let go."""

    def __init__(self, rig: Rig, pool: ThreadPoolExecutor, url: str, then: str, kind: str = "test.waits") -> None:
        self.rig = rig
        self.dispatch, self.key = accepted(rig, then, kind, then=then)
        self.answer: Future[dict[str, Any]] = pool.submit(rig.deliver, "waits", self.dispatch, url)
        rig.until((rig.flags / f"at-{self.key}").exists, "the handler")

    def go(self) -> None:
        (self.rig.flags / f"go-{self.key}").touch()

    @property
    def outcomes(self) -> list[str]:
        return self.rig.outcomes(self.dispatch.operation_id, "only")


def test_case_18_an_instance_frozen_past_its_leases_writes_nothing_when_it_thaws(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    part, url = rig.another("waits")
    assert part.pid is not None
    waiting = [Waiting(rig, pool, url, then, "test.waits.shortly") for then in ("finish", "fail", "beat", "write")]
    os.killpg(part.pid, signal.SIGSTOP)
    try:
        for one in waiting:  # the leases run out, reconcile gives them back, and the other instance runs them
            assert rig.rest(one.dispatch.operation_id) == "succeeded"
    finally:
        os.killpg(part.pid, signal.SIGCONT)
    for one in waiting:
        one.go()
        assert one.answer.result(PATIENCE)["outcome"] == "lost"
        assert one.outcomes == ["abandoned", "succeeded"]
        assert only(rig, one.dispatch)["result"] == {"attempt": 2}
    assert (rig.flags / f"lost-{waiting[2].key}").exists()  # its heartbeat was refused and the handler saw it


def test_case_28_the_caller_goes_away_and_the_step_goes_on_until_its_lease_ends(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    dispatch, key = accepted(rig, "gone", "test.waits", then="finish")
    with contextlib.suppress(requests.Timeout):
        headers = {"Authorization": f"Bearer {rig.token('waits')}"}
        requests.post(rig.url("waits"), push(dispatch), headers=headers, timeout=1)
    rig.until((rig.flags / f"at-{key}").exists, "the handler")
    for _ in range(3):
        assert rig.deliver("waits", dispatch)["outcome"] == "busy"
    expire = (
        f"UPDATE steps SET lease_expires_at = now() - interval '1 s' WHERE operation_id = '{dispatch.operation_id}'"
    )
    rig.query(f"{expire} AND state = 'running' AND attempt = 1")
    assert rig.rest(dispatch.operation_id) == "succeeded"
    (rig.flags / f"go-{key}").touch()
    rig.until(lambda: "the lease was lost" in rig.log("waits"), "its late finish")
    assert rig.outcomes(dispatch.operation_id, "only") == ["abandoned", "succeeded"]
    assert only(rig, dispatch)["result"] == {"attempt": 2}


def test_sigterm_lets_a_handler_end_and_sends_new_deliveries_away(rig: Rig, pool: ThreadPoolExecutor) -> None:
    part, url = rig.another("waits", {"SHUTDOWN_GRACE": GRACE})
    waiting = Waiting(rig, pool, url, "stop")  # it sees that the instance stops, and then still waits
    part.terminate()
    rig.until(lambda: rig.post("waits", b"", None, url).status_code == 503, "new deliveries to be sent away")
    other, _ = accepted(rig, "other", "test.waits", then="finish")
    answer = rig.post("waits", push(other), url=url)
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
    assert int(answer.headers["Retry-After"]) > 0
    assert only(rig, other)["attempt"] == 0
    waiting.go()
    assert waiting.answer.result(PATIENCE) == {"outcome": "succeeded", "result": {"attempt": 1}}
    assert waiting.outcomes == ["succeeded"]
    ended(rig, part)


def ended(rig: Rig, part: Part) -> None:
    """All of the instance's processes end by themselves."""
    rig.until(lambda: part.pid is None, "the end of the instance")


def test_case_59_what_does_not_end_in_the_grace_is_handed_back_and_runs_elsewhere(
    rig: Rig, pool: ThreadPoolExecutor
) -> None:
    part, url = rig.another("waits", {"SHUTDOWN_GRACE": SHORT})
    waiting = [Waiting(rig, pool, url, "finish") for _ in range(3)]  # their leases would last a minute
    part.terminate()
    for one in waiting:
        assert rig.rest(one.dispatch.operation_id) == "succeeded"
        assert one.outcomes == ["handed_back", "succeeded"]
        step = only(rig, one.dispatch)
        assert (step["attempt"], step["failures"], step["waits"], step["dispatch"]) == (2, 1, 0, 2)
        assert isinstance(one.answer.exception(PATIENCE), requests.ConnectionError)  # the caller delivers it again
    ended(rig, part)


def test_case_42_sigterm_or_sigkill_at_every_boundary_of_a_step_loses_and_doubles_nothing(rig: Rig) -> None:
    operations = {}
    for how in ("kill", "term"):
        for place in ("before", "after", "committed", "answered"):
            amount = next(_amounts)
            submitted = rig.submit(f"{how}.{place}", "test.pays", {"amount": amount})
            assert rig.rest(submitted.operation_id) == "succeeded", (how, place)
            operations[how, place] = (submitted.operation_id, amount)
    for (how, place), (operation_id, amount) in operations.items():
        died = how == "kill" and place in ("before", "after")
        expected = ["abandoned", "succeeded"] if died else ["succeeded"]
        assert rig.outcomes(operation_id, "only") == expected, (how, place)
        assert paid(rig)[amount] == 1, (how, place)
    rig.check()


def test_case_42_a_202_implies_a_row_whenever_intake_ends(rig: Rig) -> None:
    """Callers repeat what was not answered; intake is killed and stopped all the while."""
    seen: dict[str, set[str]] = {}
    part = rig.stack.parts["intake"]
    done = threading.Event()

    def submit(number: int) -> tuple[str, int]:
        key, amount = f"boundary-{number}", next(_amounts)
        while True:
            time.sleep(0.05)
            with contextlib.suppress(requests.ConnectionError):
                answer = requests.post(
                    f"{rig.stack.addresses.intake}/v1/tenants/{TENANT}/operations",
                    json={"type": "test.pays", "input": {"amount": amount}},
                    headers={"Idempotency-Key": key},
                    timeout=PATIENCE,
                )
                if answer.status_code == 202:
                    seen.setdefault(key, set()).add(answer.json()["id"])
                if answer.status_code in (200, 202):
                    return answer.json()["id"], amount

    def end_intake() -> None:
        for number in range(KILLS):
            rig.until(lambda: part.pid is not None or done.is_set(), "intake")
            time.sleep(0.7)  # while requests are under way
            if part.pid is not None:
                os.killpg(part.pid, signal.SIGKILL if number % 2 else signal.SIGTERM)

    ending = threading.Thread(target=end_intake)
    ending.start()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(submit, range(REQUESTS)))
    done.set()
    ending.join()
    assert len({operation_id for operation_id, _ in answers}) == REQUESTS
    rows = rig.query("SELECT id::text, key FROM operations WHERE key LIKE 'boundary-%'")
    assert {(key, ids.pop()) for key, ids in seen.items()} <= {(key, operation_id) for operation_id, key in rows}
    assert len(rows) == REQUESTS
    assert {rig.rest(operation_id) for operation_id, _ in answers} == {"succeeded"}
    assert {paid(rig)[amount] for _, amount in answers} == {1}


def test_case_40_a_step_and_then_reconcile_itself_are_killed_and_both_recover(rig: Rig) -> None:
    amounts = [next(_amounts) for _ in range(3)]
    ids = [rig.submit("kill.after", "test.pays", {"amount": amount}).operation_id for amount in amounts]
    part = rig.stack.parts["reconcile"]
    starts = part.starts
    for kills in (1, 2):
        assert part.pid is not None
        os.killpg(part.pid, signal.SIGKILL)
        rig.until(lambda: part.starts >= starts + kills and part.pid is not None, "reconcile again")  # noqa: B023
    for operation_id, amount in zip(ids, amounts, strict=True):
        assert rig.rest(operation_id) == "succeeded"
        assert rig.outcomes(operation_id, "only")[-1] == "succeeded"
        assert paid(rig)[amount] == 1
        step = rig.query(f"SELECT lease_expires_at FROM steps WHERE operation_id = '{operation_id}'")
        assert step == [[None]]
    rig.check()
