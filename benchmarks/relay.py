"""Relay: a backlog of outbox rows published to Pub/Sub, its ids waited for and the rows marked."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from benchmarks.bench import SQL, TRACEPARENT, TYPE, Bench
from benchmarks.emulator import pubsub
from benchmarks.measure import Aim, Comparison, Contender
from shared import envelope, relay
from shared.outbox import Outbox
from shared.publisher import Publisher

PROJECT = "bench"
ROWS = 20_000
ROWS_ONE_BY_ONE = 100  # each waits for the client's own batching
TOPIC = "bench-record"
TOPIC_PATH = f"projects/{PROJECT}/topics/{TOPIC}"
PUBLISH_TIMEOUT = 30.0


@contextlib.contextmanager
def comparisons(bench: Bench) -> Iterator[list[Comparison]]:
    """Start the Pub/Sub server and give the comparison; the topic has no subscription, so nothing is delivered."""
    with pubsub() as server:
        os.environ["PUBSUB_EMULATOR_HOST"] = server.address
        # Imported here: the client library reads the variable, and takes a second.
        from google.cloud.pubsub_v1 import PublisherClient

        client = PublisherClient()
        client.create_topic(name=TOPIC_PATH)
        outbox = Outbox(bench.database, bench.pipeline, Publisher(PROJECT))
        contenders = [
            Contender("row by row, .result() each", "other", lambda n: _one_by_one(bench, client, n), ROWS_ONE_BY_ONE),
            Contender("futures, one UPDATE … = ANY", "usual", lambda n: _futures(bench, client, n), ROWS),
            Contender("relay.run_once", "ours", lambda n: _ours(bench, outbox, n), ROWS),
        ]
        title = f"relay of {ROWS} rows to {server.what}"
        try:
            yield [Comparison("relay", title, contenders, Aim("usual", 3.0))]
        finally:
            client.stop()
            os.environ.pop("PUBSUB_EMULATOR_HOST")


def _ours(bench: Bench, outbox: Outbox, count: int) -> float:
    bench.prepare(count)
    started = time.perf_counter()
    tick = relay.run_once(outbox)
    seconds = time.perf_counter() - started
    _check(min(tick.published, bench.sql("count_published")), count)
    return seconds


def _futures(bench: Bench, client: Any, count: int) -> float:
    """The usual fast way: publish a batch of rows through the client's futures, wait for all, mark them, commit."""
    bench.prepare_usual(count)
    with contextlib.closing(bench.dbapi()) as connection:
        cursor = connection.cursor()
        started = time.perf_counter()
        while _futures_batch(client, cursor):
            connection.commit()
        seconds = time.perf_counter() - started
    _check(bench.sql("usual_count_published"), count)
    return seconds


def _futures_batch(client: Any, cursor: Any) -> bool:
    cursor.execute(SQL["usual_relay_read"], (relay.BATCH,))
    rows = cursor.fetchall()
    futures = [_publish(client, row) for row in rows]
    for future in futures:
        future.result(timeout=PUBLISH_TIMEOUT)
    cursor.execute(SQL["usual_relay_mark"], ([row[0] for row in rows],))
    return bool(rows)


def _one_by_one(bench: Bench, client: Any, count: int) -> float:
    bench.prepare_usual(count)
    with contextlib.closing(bench.dbapi()) as connection:
        cursor = connection.cursor()
        started = time.perf_counter()
        cursor.execute(SQL["usual_relay_read"], (count,))
        for row in cursor.fetchall():
            _publish(client, row).result(timeout=PUBLISH_TIMEOUT)
            cursor.execute(SQL["usual_relay_mark_one"], (row[0],))
            connection.commit()
        seconds = time.perf_counter() - started
    _check(bench.sql("usual_count_published"), count)
    return seconds


def _publish(client: Any, row: Any) -> Any:
    """Hand the same message that the relay sends to the client library; returns its future."""
    return client.publish(TOPIC_PATH, envelope.encode(row[1], TYPE, row[2], 1), traceparent=TRACEPARENT)


def _check(found: int, expected: int) -> None:
    if found != expected:
        raise RuntimeError(f"{found} rows were published, not {expected}")
