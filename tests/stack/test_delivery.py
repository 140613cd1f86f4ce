"""Delivery on the whole stack: paced, delayed to the second, and by the relay alone. Each test prints its figures."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import pytest

from local.client import Client
from local.postgres import free_port
from local.stack import PLUMBING, ROOT, Stack
from shared.database import Connection, connector
from tests.stack.kit import folder_for_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

HERE = Path(__file__).parent
TENANT = "shop"
PACED, RATE, AT_ONCE = 100, 5, 2
PACED_WITHIN = 25.0  # seconds
CALL = 0.2  # seconds that the provider takes for one
JITTER = 0.3  # seconds that one call may take longer than another from its turn to the provider, on a busy machine
DELAYED, LATE = 200, 1.0  # operations; seconds late that their median may be
ALONE = 100  # operations that the relay alone delivers
TICK = 4.0  # seconds, for a minute in the cloud
PATIENCE = 60.0  # seconds
_numbers = itertools.count()


class Provider:
    """A provider that writes down when each call came and went, by its own clock."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []
        self.keys: list[bytes] = []
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                came = time.monotonic()
                key = self.rfile.read(int(self.headers["Content-Length"]))
                time.sleep(CALL)
                with provider.lock:
                    provider.calls.append((came, time.monotonic()))
                    provider.keys.append(key)
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def forget(self) -> None:
        """Begin the log anew."""
        with self.lock:
            self.calls.clear()
            self.keys.clear()

    @property
    def arrivals(self) -> list[float]:
        return sorted(came for came, _ in self.calls)

    def most_at_once(self) -> int:
        moments = sorted([(came, 1) for came, _ in self.calls] + [(went, -1) for _, went in self.calls])
        return max(itertools.accumulate(change for _, change in moments))


class Scene:
    """A stack with the pipeline of these tests, and what its database says of a type's steps."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.connection = Connection(connector(stack.addresses.database)())

    def submit(self, kind: str, count: int, delays: list[float] | None = None) -> None:
        """Submit over HTTP, four at a time."""

        def submit(number: int) -> None:
            body: dict[str, Any] = {"type": kind, "input": {"number": number}}
            if delays is not None:
                body["not_before"] = (datetime.now(UTC) + timedelta(seconds=delays[number])).isoformat()
            clients.client.submit(body, f"{kind}-{next(_numbers)}")

        clients = _Clients(self.stack.addresses.intake)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(submit, range(count)))

    def rest(self, kind: str) -> None:
        """Wait until every operation of a type has succeeded."""
        deadline = time.monotonic() + PATIENCE
        left = f"SELECT count(*) FROM operations WHERE type = '{kind}' AND state <> 'succeeded'"
        while self.query(left) != [[0]]:
            assert time.monotonic() < deadline, self.query(f"SELECT state, count(*) FROM steps GROUP BY state ({kind})")
            time.sleep(0.1)

    def late(self, kind: str, than: str) -> list[float]:
        """How many seconds after `than` each step of a type started, sorted."""
        rows = self.query(f"""
            SELECT extract(epoch FROM s.attempt_started_at - {than})::float8
            FROM steps s JOIN operations o ON o.id = s.operation_id WHERE o.type = '{kind}'
        """)
        return sorted(row[0] for row in rows)

    def query(self, sql: str) -> list[list[Any]]:
        return list(self.connection.raw.run(sql) or [])

    def ticks(self) -> int:
        """How often the relay has run so far."""
        return (self.stack.data / "relay.log").read_text().count("relay tick")


class _Clients(threading.local):
    def __init__(self, url: str) -> None:
        self.client = Client(url, TENANT)


@contextlib.contextmanager
def scene(**env: str) -> Iterator[Scene]:
    """Start the stack with these variables."""
    before = dict(os.environ)
    os.environ.update(env)
    try:
        with folder_for_all() as folder:
            shutil.copytree(HERE / "delivery", folder / "functions", ignore=shutil.ignore_patterns("__pycache__"))
            for name in PLUMBING:
                (folder / "functions" / name).symlink_to(ROOT / "functions" / name)
            with Stack(
                folder / "data",
                port=free_port(),
                tick=TICK,
                pipeline_file=HERE / "delivery.yaml",
                functions=folder / "functions",
            ) as stack:
                found = Scene(stack)
                yield found
                found.connection.close()
                assert stack.failure is None
    finally:
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    provider = Provider()
    yield provider
    provider.close()


@pytest.fixture(scope="module")
def running(provider: Provider) -> Iterator[Scene]:
    with scene(DELIVERY_TEST_PROVIDER=provider.url) as running:
        yield running


def test_a_paced_step_keeps_its_rate_and_its_concurrency(running: Scene, provider: Provider) -> None:
    running.submit("delivery.paced", AT_ONCE)  # every process imports and connects at its first
    running.rest("delivery.paced")
    provider.forget()
    started = time.monotonic()
    running.submit("delivery.paced", PACED)
    running.rest("delivery.paced")
    took = time.monotonic() - started
    arrivals = provider.arrivals
    seconds = [sum(1 for at in arrivals if start <= at < start + 1) for start in arrivals]
    print(
        f"\npaced: {PACED} operations in {took:.1f} s; at once {provider.most_at_once()} (limit {AT_ONCE});"
        f" in any second {max(seconds)} at most (limit {RATE})"
    )
    assert len(set(provider.keys)) == len(arrivals) == PACED
    assert provider.most_at_once() <= AT_ONCE
    for first, sixth in zip(arrivals, arrivals[RATE:], strict=False):  # more than RATE, so more than a second
        assert sixth - first > 1 - JITTER
    assert took < PACED_WITHIN


def test_delayed_operations_start_at_their_time_without_polling(running: Scene) -> None:
    delays = [1 + 19 * number / (DELAYED - 1) for number in range(DELAYED)]
    random.Random(1).shuffle(delays)
    started, ticks = time.monotonic(), running.ticks()
    running.submit("delivery.noop", DELAYED, delays)
    running.rest("delivery.noop")
    took, ticks = time.monotonic() - started, running.ticks() - ticks
    late = running.late("delivery.noop", "o.not_before")
    print(
        f"\ndelayed: {DELAYED} operations due after 1-20 s started {median(late):.3f} s late (median), p95"
        f" {quantiles(late, n=20)[-1]:.3f} s, most {late[-1]:.3f} s; the relay looked {ticks} times in {took:.0f} s"
    )
    assert len(late) == DELAYED
    assert late[0] >= 0
    assert median(late) < LATE
    assert ticks <= took
    assert running.query("SELECT count(*) FROM outbox WHERE published > 0") == [[0]]  # nor was any of them late


def test_the_relay_alone_delivers_within_a_tick_and_a_half() -> None:
    with scene(PUBLISH_AT_ONCE="false", DELIVERY_TEST_PROVIDER="http://127.0.0.1:9") as alone:
        alone.submit("delivery.noop", ALONE)
        alone.rest("delivery.noop")
        late = alone.late("delivery.noop", "o.accepted_at")
    print(
        f"\nrelay alone: {ALONE} operations started {median(late) / TICK:.2f} ticks after acceptance (median), the last"
        f" {late[-1] / TICK:.2f} ticks (limit 1.5)"
    )
    assert len(late) == ALONE
    assert late[-1] <= 1.5 * TICK
