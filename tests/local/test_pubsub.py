"""What only our Pub/Sub promises: its flow control, retention, and the state after a failed write or a restart."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.api_core import exceptions
from google.pubsub_v1 import types

from local.pubsub import PubSubServer
from local.pubsub.backlog import Backlog, Delivery, Message
from local.pubsub.push import FIRST_WINDOW, MAX_PAUSE, MAX_WINDOW, Window
from local.serving.journal import Journal
from tests.conformance.cases import Backend, backoff
from tests.local.endpoint import Answer, Endpoint


@pytest.fixture(scope="module")
def backend() -> Iterator[Backend]:
    server = PubSubServer()
    yield Backend("local", f"127.0.0.1:{server.start()}")
    server.stop()


def test_pushes_start_slowly_and_grow(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}", Answer(delay=0.5)))
    backend.publish(topic, *[{"data": b"x"}] * 100)
    first = endpoint.wait(f"/{name}", FIRST_WINDOW)
    assert endpoint.wait(f"/{name}", FIRST_WINDOW + 1)[FIRST_WINDOW].at - first[0].at >= 0.49
    endpoint.wait(f"/{name}", 100)
    assert FIRST_WINDOW < endpoint.peak(f"/{name}") <= MAX_WINDOW


def test_failing_endpoint_is_spared(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}", 503))
    backend.publish(topic, *[{"data": b"x"}] * 200)
    time.sleep(2)
    assert len(endpoint.received(f"/{name}")) < 30
    endpoint.url(f"/{name}", 200)
    before = len(endpoint.received(f"/{name}"))
    endpoint.wait(f"/{name}", before + 200)


def test_window_grows_shrinks_and_pauses() -> None:
    window = Window()
    for _ in range(100):
        window.succeeded()
    assert window.size == MAX_WINDOW
    assert window.failed(paused=False) == 0
    assert window.size == MAX_WINDOW // 2
    assert [window.failed(paused=False) for _ in range(3)] == [0.1, 0.2, 0.4]
    assert window.failed(paused=True) == 0
    assert max(window.failed(paused=False) for _ in range(20)) == MAX_PAUSE
    assert window.size == 1
    window.succeeded()
    assert (window.size, window.failed(paused=False)) == (2, 0)


def test_messages_past_their_retention_are_dropped() -> None:
    async def run() -> tuple[list[Delivery], int]:
        config = types.Subscription.pb()(name="projects/p/subscriptions/s")
        config.message_retention_duration.seconds = 600
        backlog = Backlog(config, Journal(None), lambda *_: False)
        old, new = Message("1", b"", time.time() - 601), Message("2", b"", time.time() - 599)
        backlog.add([Delivery(old), Delivery(new)])
        return backlog.take(10), len(backlog)

    taken, held = asyncio.run(run())
    assert [delivery.message.id for delivery in taken] == ["2"]
    assert held == 1


def test_attempts_and_settings_survive_a_restart(tmp_path: Path, endpoint: Endpoint, name: str) -> None:
    server = PubSubServer(tmp_path)
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    dead = backend.topic(f"{name}-dead")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    topic, subscription = backend.pair(name, dead_letter_policy=policy, retry_policy=backoff(0, 1))
    backend.publish(topic, {"data": b"x"})
    for _ in range(2):
        [found] = backend.pull(subscription, ack=False)
        backend.modify(subscription, [found.ack_id], 0)
    server.stop()
    server = PubSubServer(tmp_path)
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    [found] = backend.pull(subscription)
    assert found.delivery_attempt == 3
    kept = backend.subscriber.get_subscription(subscription=subscription)
    assert kept.dead_letter_policy.dead_letter_topic == dead
    server.stop()
    server.stop()  # harmless


def test_full_disk_refuses_and_loses_nothing(tmp_path: Path, name: str) -> None:
    server = PubSubServer(tmp_path)
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    topic, subscription = backend.pair(name)
    backend.publish(topic, {"data": b"before"})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # a longer file is an error to the writer
    try:
        with pytest.raises(exceptions.ServiceUnavailable):
            backend.publish(topic, {"data": b"x" * 20_000})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    backend.publish(topic, {"data": b"after"})
    server.stop()
    server = PubSubServer(tmp_path)
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    assert {each.message.data for each in backend.pull(subscription, 2)} == {b"before", b"after"}
    server.stop()


def test_backlog_of_a_deleted_subscription_leaves_the_journal(tmp_path: Path, name: str) -> None:
    server = PubSubServer(tmp_path)
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    topic, subscription = backend.pair(name)
    other = backend.subscription(f"{name}-other", topic)
    backend.publish(topic, {"data": b"1"}, {"data": b"2"})
    backend.subscriber.delete_subscription(subscription=subscription)
    assert len(backend.pull(other, 2)) == 2
    server.stop()
    journal = Journal(tmp_path / "pubsub.journal")
    assert sorted(key for key, _ in journal.items("")) == [f"s/{other}", f"t/{topic}"]
    journal.close()
