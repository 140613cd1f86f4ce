"""Instances whose clocks are ten minutes off, by libfaketime: the database's time decides, and nothing changes.

What an instance's own clock is used for is one thing: the tokens of its callers, within ten seconds. An instance whose
clock is slow takes every token for one from the future and refuses it before anything is read, so its deliveries go to
another instance. One whose clock is fast finds them good until the last ten minutes of their hour.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from local.signing import claims_of
from local.stack import PUSH_ACCOUNT, ROOT, SCHEDULER_ACCOUNT
from tests.stack.kit import HERE, TENANT, Rig, folder_for_all, push

LIBRARIES = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.skipif(not LIBRARIES, reason="libfaketime is not installed: apt install faketime"),
]

FAST, SLOW = 600, -600  # seconds
DELIVERIES = 12  # of one message at one moment
OPERATIONS = 20
_amounts = itertools.count(100)


def off_by(seconds: int) -> dict[str, str]:
    """The environment of a process whose clock is off; only its wall clock, as when its time was set wrong."""
    return {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME": f"{seconds:+d}s",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "PYTHONPATH": f"{HERE / 'clock'}:{ROOT}",
    }


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with folder_for_all() as folder:
        rig = Rig(folder, HERE / "instances.yaml", "instances")
        try:
            yield rig
            rig.check()
        finally:
            rig.close()


@pytest.fixture(scope="module")
def pays(rig: Rig) -> dict[int, str]:
    """URLs of instances of the function `pays`, by how many seconds their clocks are off."""
    return {0: rig.url("pays")} | {off: rig.another("pays", off_by(off))[1] for off in (FAST, SLOW)}


def accepted(rig: Rig) -> tuple[Any, int]:
    amount = next(_amounts)
    return rig.accept("plain", "test.pays", {"amount": amount}), amount


def paid(rig: Rig) -> Counter[int]:
    """How often each amount was paid, by the provider's own log."""
    ledger = requests.get(f"{rig.stack.addresses.payments}/_control/ledger", timeout=30).json()
    return Counter(payment["amount"] for payment in ledger)


def test_the_clocks_are_off(rig: Rig, pays: dict[int, str]) -> None:
    """Each instance accepts a token of its own present and refuses one that is ten minutes from it either way."""
    now = int(time.time())
    for off, url in pays.items():
        for at in (FAST, 0, SLOW):
            claims = claims_of(PUSH_ACCOUNT, rig.url("pays"), now) | {"iat": now + at, "exp": now + at + 300}
            answer = rig.post("pays", b"[]", rig.signer.sign(claims), url)
            assert answer.status_code == (200 if at == off else 401), (off, at)


def test_case_14_of_deliveries_at_once_to_instances_in_three_times_one_is_claimed(
    rig: Rig, pays: dict[int, str]
) -> None:
    dispatch, amount = accepted(rig)
    barrier = threading.Barrier(DELIVERIES)

    def deliver(url: str) -> requests.Response:
        barrier.wait()
        return rig.post("pays", push(dispatch), url=url)

    with ThreadPoolExecutor(DELIVERIES) as pool:
        answers = list(pool.map(deliver, itertools.islice(itertools.cycle(pays.values()), DELIVERIES)))
    outcomes = Counter(a.json()["outcome"] if a.status_code == 200 else str(a.status_code) for a in answers)
    assert outcomes["401"] == DELIVERIES // 3  # the slow one, which has written nothing
    assert outcomes["succeeded"] == 1
    assert outcomes["busy"] + outcomes["done"] == DELIVERIES - DELIVERIES // 3 - 1
    step = rig.step(dispatch.operation_id, "only")
    assert (step["attempt"], step["failures"], step["fence"]) == (1, 1, 1)
    assert paid(rig)[amount] == 1


def test_case_14_what_a_fast_instance_does_is_dated_by_the_database(rig: Rig, pays: dict[int, str]) -> None:
    """Its claims, leases, effects and retries are those of any other instance."""
    dispatch, amount = accepted(rig)
    order = {"next": [{"kind": "rate_limited", "retry_after": "2"}]}
    assert requests.post(f"{rig.stack.addresses.payments}/_control/faults", json=order, timeout=30).ok
    assert rig.deliver("pays", dispatch, pays[FAST])["outcome"] == "queued"
    which = f"operation_id = '{dispatch.operation_id}'"
    dated = rig.query(
        "SELECT extract(epoch FROM attempt_started_at - now()), extract(epoch FROM available_at - attempt_started_at), "
        f"waits FROM steps WHERE {which}"
    )[0]
    assert -30 < dated[0] <= 0  # now, by the database
    assert 2 <= dated[1] < 30  # the wait that the provider asked for
    assert dated[2] == 1
    assert rig.query(f"SELECT abs(extract(epoch FROM send_deadline - now())) < 60 FROM effects WHERE {which}") == [
        [True]
    ]
    assert rig.rest(dispatch.operation_id) == "succeeded"
    assert rig.outcomes(dispatch.operation_id, "only") == ["wait", "succeeded"]
    assert paid(rig)[amount] == 1


def test_case_14_a_slow_instance_refuses_and_the_others_do_its_work(rig: Rig, pays: dict[int, str]) -> None:
    """Relay and Pub/Sub bring what it refused to an instance that does not."""
    dispatch, amount = accepted(rig)
    for _ in range(3):
        answer = rig.post("pays", push(dispatch), url=pays[SLOW])
        assert answer.status_code == 401
    step = rig.step(dispatch.operation_id, "only")
    assert (step["state"], step["attempt"], step["failures"]) == ("queued", 0, 0)
    rig.query(f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{dispatch.operation_id}'")
    assert rig.rest(dispatch.operation_id) == "succeeded"
    assert rig.outcomes(dispatch.operation_id, "only") == ["succeeded"]
    assert paid(rig)[amount] == 1


@pytest.mark.parametrize("off", [FAST, SLOW])
def test_case_14_relay_and_reconcile_in_another_time_move_only_what_is_due_by_the_database(rig: Rig, off: int) -> None:
    """A live lease stays, an outbox row that is not due stays, and a slow one refuses the scheduler's call."""
    dispatch, _ = accepted(rig)  # its writer has it for a minute
    running = rig.accept("held", "test.waits", {"then": "finish"})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(rig.deliver, "waits", running)
        key = rig.query(f"SELECT key FROM operations WHERE id = '{running.operation_id}'")[0][0]
        rig.until((rig.flags / f"at-{key}").exists, "the handler")
        for name in ("relay", "reconcile"):
            _, url = rig.another(name, off_by(off))
            token = rig.signer.id_token(SCHEDULER_ACCOUNT, rig.url(name))
            for _ in range(3):
                assert rig.post(name, b"", token, url).status_code == (200 if off == FAST else 401)
        assert rig.query(f"SELECT published FROM outbox WHERE operation_id = '{dispatch.operation_id}'") == [[0]]
        (rig.flags / f"go-{key}").touch()
        assert answer.result()["outcome"] == "succeeded"
    assert rig.outcomes(running.operation_id, "only") == ["succeeded"]
    rig.query(f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{dispatch.operation_id}'")
    assert rig.rest(dispatch.operation_id) == "succeeded"


@pytest.mark.parametrize("off", [FAST, SLOW])
def test_case_14_an_intake_in_another_time_accepts_what_the_others_do(rig: Rig, off: int) -> None:
    """Ids, acceptance times and due times are the database's, so that lists and delays are in order."""
    _, url = rig.another("intake", off_by(off))
    ids = []
    for number in range(OPERATIONS):
        base = (url, rig.stack.addresses.intake)[number % 2]
        answer = requests.post(
            f"{base}/v1/tenants/{TENANT}/operations",
            json={"type": "test.pays", "input": {"amount": next(_amounts)}},
            headers={"Idempotency-Key": f"time-{off}-{number}"},
            timeout=30,
        )
        assert answer.status_code == 202, answer.text
        ids.append(answer.json()["id"])
    assert sorted(ids) == ids  # UUIDv7 by one clock
    listed = ", ".join(f"'{one}'" for one in ids)
    assert rig.query(
        f"SELECT count(*) FROM operations WHERE id IN ({listed}) AND abs(extract(epoch FROM accepted_at - now())) < 60"
    ) == [[OPERATIONS]]
    assert {rig.rest(one) for one in ids} == {"succeeded"}
    assert {tuple(rig.outcomes(one, "only")) for one in ids} == {("succeeded",)}


def test_the_process_that_looks_is_in_the_right_time(rig: Rig) -> None:
    assert "LD_PRELOAD" not in os.environ
    assert abs(rig.query("SELECT extract(epoch FROM now())")[0][0] - int(time.time())) < 60
