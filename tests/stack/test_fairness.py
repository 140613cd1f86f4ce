"""One tenant submits two thousand operations, another twenty a moment later, on the whole stack."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from grpc import insecure_channel

from local.stack import PROJECT, Stack
from shared import admission, operations
from shared.database import Connection, Database, connector
from shared.identity import Options, Request
from shared.outbox import Outbox
from shared.publisher import Publisher
from tests.stack.kit import scene

BURST = 2000
FEW = 20
SHARE = 0.1  # of the burst's remaining operations: by then the few are done
PATIENCE = 50.0  # seconds
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with scene("fairness") as stack:
        yield stack


class Submitter:
    """Does what intake does, from several threads: over HTTP the burst would take longer than its work."""

    def __init__(self, stack: Stack) -> None:
        transport = PublisherGrpcTransport(channel=insecure_channel(stack.pubsub))
        self._database = Database(connector(stack.addresses.database), size=4)
        self._pipeline = stack.pipeline
        self._outbox = Outbox(
            self._database, stack.pipeline, Publisher(PROJECT, lambda: PublisherClient(transport=transport))
        )

    def submit(self, tenant: str, count: int) -> None:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(lambda number: self._submit(tenant, number), range(count)))

    def _submit(self, tenant: str, number: int) -> None:
        request = Request("fair.step", {"number": number}, Options())
        accepted = operations.accept(self._database, self._pipeline, tenant, f"fair-{number}", request)
        self._outbox.publish_at_once(accepted.due)
        if accepted.waits:
            admission.admit(self._outbox, self._pipeline, tenant)

    def close(self) -> None:
        self._database.close()


def test_a_burst_of_one_tenant_does_not_starve_another(stack: Stack) -> None:
    submitter, connection = Submitter(stack), Connection(connector(stack.addresses.database)())
    started = time.monotonic()
    submitter.submit("burst", BURST)
    submitted = time.monotonic() - started
    submitter.submit("few", FEW)
    most, deadline = 0, time.monotonic() + PATIENCE
    while left(connection, "few"):
        assert time.monotonic() < deadline
        most = max(most, in_flight(connection, "burst"))
        time.sleep(0.02)
    while left(connection, "burst"):
        assert time.monotonic() < deadline
        most = max(most, in_flight(connection, "burst"))
        time.sleep(0.1)
    ((accepted, finished, remaining, ahead, seconds, whole),) = connection.raw.run(NUMBERS)
    print(
        f"\n{BURST} of one tenant ({submitted:.1f} s to submit), then {FEW} of another: these took {seconds:.2f} s "
        f"while {ahead} of the {remaining} remaining ones ended ({ahead / remaining:.1%}); "
        f"at most {most} in flight; all {accepted} done after {whole:.1f} s"
    )
    submitter.close()
    connection.close()
    assert finished == accepted == BURST + FEW
    assert ahead < SHARE * remaining
    assert most <= 50 + 4  # four threads may find the last place at the same moment


def left(connection: Connection, tenant: str) -> int:
    return int(
        connection.raw.run(f"SELECT count(*) FROM operations WHERE tenant = '{tenant}' AND state <> 'succeeded'")[0][0]
    )


def in_flight(connection: Connection, tenant: str) -> int:
    return int(
        connection.raw.run(
            "SELECT count(*) FROM operations WHERE admitted_at IS NOT NULL AND state IN ('requested', 'running') "
            f"AND tenant = '{tenant}'"
        )[0][0]
    )


# Remaining: not finished when the first of the few was accepted; ahead: of these, finished before the last of the few.
NUMBERS = """
    WITH few AS (
        SELECT min(accepted_at) AS began, max(finished_at) AS ended FROM operations WHERE tenant = 'few'
    )
    SELECT count(*), count(o.finished_at),
        count(*) FILTER (WHERE o.tenant = 'burst' AND o.finished_at > few.began),
        count(*) FILTER (WHERE o.tenant = 'burst' AND o.finished_at > few.began AND o.finished_at < few.ended),
        extract(epoch FROM few.ended - few.began)::float8,
        extract(epoch FROM max(o.finished_at) - min(o.accepted_at))::float8
    FROM operations AS o, few GROUP BY few.began, few.ended
"""
