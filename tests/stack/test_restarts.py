"""PostgreSQL crashes three times while hundreds of operations pay at a real provider."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests

from shared.database import Connection, connector
from tests.stack.kit import HERE, PATIENCE, TENANT, Rig, folder_for_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

OPERATIONS = 500
RESTARTS = (0.2, 0.5, 0.8)  # shares of the payments at which the database crashes
AWAY = 1.0  # seconds between a crash and the next start
DRAINED_BY = 120.0  # seconds to wait at most


@pytest.fixture
def rig() -> Iterator[Rig]:
    with folder_for_all() as folder:
        rig = Rig(folder, HERE / "instances.yaml", "instances")
        try:
            yield rig
        finally:
            rig.close()


def submit(rig: Rig, number: int) -> str:
    """Ask for one payment, again until it is accepted; return its id."""
    url = f"{rig.stack.addresses.intake}/v1/tenants/{TENANT}/operations"
    body = {"type": "test.pays", "input": {"amount": 100 + number}}
    while True:
        with contextlib.suppress(requests.ConnectionError):
            answer = requests.post(url, json=body, headers={"Idempotency-Key": f"plain-{number}"}, timeout=PATIENCE)
            if answer.status_code in (200, 202):
                return str(answer.json()["id"])
            assert answer.status_code == 503, answer.text
        time.sleep(0.1)


def payments(rig: Rig) -> list[int]:
    """The amounts that were really paid, by the provider's own log."""
    ledger = requests.get(f"{rig.stack.addresses.payments}/_control/ledger", timeout=30).json()
    return [payment["amount"] for payment in ledger]


def test_three_crashes_of_postgresql_lose_no_operation_and_double_no_effect(
    rig: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    ids: list[str] = []

    def submit_all() -> None:
        with ThreadPoolExecutor(4) as pool:
            ids.extend(pool.map(lambda number: submit(rig, number), range(OPERATIONS)))

    rig._raw.close()  # it would not survive
    submitting = threading.Thread(target=submit_all)
    submitting.start()
    for share in RESTARTS:
        rig.until(lambda: len(payments(rig)) >= share * OPERATIONS, "payments", DRAINED_BY)  # noqa: B023
        rig.stack.stop_database()
        time.sleep(AWAY)
        rig.stack.start_database()
    submitting.join()
    rig._raw = Connection(connector(rig.stack.addresses.database)())
    done = f"SELECT count(*) = {OPERATIONS} FROM operations WHERE state NOT IN ('requested', 'running')"
    rig.until(lambda: rig.query(done)[0][0], "the end of every operation", DRAINED_BY)
    took = time.monotonic() - began
    outcomes = dict(rig.query("SELECT outcome, count(*) FROM attempts GROUP BY outcome ORDER BY outcome"))
    with capsys.disabled():
        told = f"{OPERATIONS} operations, {len(RESTARTS)} crashes of PostgreSQL, {len(payments(rig))} payments"
        print(f"\n{told}: done in {took:.0f} s; attempts by outcome {outcomes}")
    assert len(set(ids)) == OPERATIONS
    assert rig.query("SELECT state, count(*) FROM operations GROUP BY state") == [["succeeded", OPERATIONS]]
    assert sorted(payments(rig)) == [100 + number for number in range(OPERATIONS)]
    assert outcomes["succeeded"] == OPERATIONS
    assert rig.stack.failure is None
    rig.check()
