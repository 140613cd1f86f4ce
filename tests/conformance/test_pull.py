"""Pulling and subscriptions' settings: the same cases against our Pub/Sub and Google's emulator."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any

import pytest
from google.api_core import exceptions
from google.protobuf.field_mask_pb2 import FieldMask

from tests.conformance.cases import ACK_DEADLINE, Backend, Scenes, backoff, topic_of
from tests.local.endpoint import Endpoint


def test_acknowledged_messages_do_not_come_again(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    backend.publish(topic, {"data": b"1"}, {"data": b"2"})
    found = backend.pull(subscription, 2)
    assert backend.pull_now(subscription) == []
    backend.ack(subscription, [found[0].ack_id])  # a second time: no error
    assert found[0].delivery_attempt == 0  # unset without a dead-letter policy


def test_two_subscriptions_each_get_every_message(backend: Backend, name: str) -> None:
    topic, first = backend.pair(name)
    second = backend.subscription(f"{name}-2", topic)
    backend.publish(topic, {"data": b"x"})
    assert len(backend.pull(first)) == 1
    assert len(backend.pull(second)) == 1


def test_deadline_zero_is_a_nack(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    backend.publish(topic, {"data": b"x"})
    [first] = backend.pull(subscription, ack=False)
    backend.modify(subscription, [first.ack_id], 0)
    [again] = backend.pull(subscription)
    assert again.message == first.message
    assert again.ack_id != first.ack_id


def test_deadline_expires_unless_extended(backend: Backend, scenes: Scenes) -> None:
    found = backend.pull(scenes.leases)
    assert time.monotonic() - scenes.leased_at > ACK_DEADLINE - 0.5
    assert [each.message.data for each in found] == [b"left"]
    backend.ack(scenes.leases, [scenes.extended_ack_id])  # still its holder's


def test_attempts_are_counted_with_a_dead_letter_policy(backend: Backend, name: str) -> None:
    dead, letters = backend.pair(f"{name}-dead")
    policy = {"dead_letter_topic": dead, "max_delivery_attempts": 5}
    topic, subscription = backend.pair(name, dead_letter_policy=policy)
    backend.publish(topic, {"data": b"x"})
    attempts = []
    for _ in range(5):
        [found] = backend.pull(subscription, ack=False)
        attempts.append(found.delivery_attempt)
        backend.modify(subscription, [found.ack_id], 0)
    assert attempts == [1, 2, 3, 4, 5]
    # DIFFERENCE: the emulator forwards a dead letter only when the source subscription is pulled once more
    assert backend.pull_now(subscription) == []
    [letter] = backend.pull(letters)
    assert letter.message.attributes["CloudPubSubDeadLetterSourceDeliveryCount"] == "5"


def test_malformed_requests_are_refused(backend: Backend, name: str) -> None:
    _, subscription = backend.pair(name)
    calls: list[Callable[[], Any]] = [
        lambda: backend.ack(subscription, ["nonsense"]),
        lambda: backend.ack(subscription, []),
        lambda: backend.modify(subscription, ["nonsense"], 10),
        lambda: backend.subscriber.pull(subscription=subscription, max_messages=0),
    ]
    for call in calls:
        with pytest.raises(exceptions.InvalidArgument):
            call()


@pytest.mark.parametrize(
    "settings",
    [
        {"ack_deadline_seconds": 601},
        {"retry_policy": backoff(60, 10)},
        {"dead_letter_policy": {"dead_letter_topic": topic_of("nowhere"), "max_delivery_attempts": 5}},
    ],
    ids=["long deadline", "inverted backoff", "no dead-letter topic"],
)
def test_settings_out_of_bounds_are_refused(backend: Backend, name: str, settings: dict[str, Any]) -> None:
    topic = backend.topic(name)
    with pytest.raises((exceptions.InvalidArgument, exceptions.NotFound)):
        backend.subscription(name, topic, **settings)


def test_ack_deadline_below_ten_seconds(backend: Backend, name: str) -> None:
    topic = backend.topic(name)
    if backend.is_local:
        with pytest.raises(exceptions.InvalidArgument):
            backend.subscription(name, topic, ack_deadline_seconds=9)
    else:  # DIFFERENCE: the service's minimum is 10 s, the emulator takes less
        backend.subscription(name, topic, ack_deadline_seconds=9)


@pytest.mark.parametrize("attempts", [4, 101])
def test_delivery_attempts_out_of_bounds_are_refused(backend: Backend, name: str, attempts: int) -> None:
    topic = backend.topic(name)
    policy = {"dead_letter_topic": topic, "max_delivery_attempts": attempts}
    with pytest.raises(exceptions.BadRequest, match="max_delivery_attempts"):
        backend.subscription(name, topic, dead_letter_policy=policy)


def test_update_changes_what_the_mask_names(backend: Backend, name: str) -> None:
    _, subscription = backend.pair(name)
    update = {"name": subscription, "ack_deadline_seconds": 30, "retry_policy": backoff(1, 7)}
    changed = backend.subscriber.update_subscription(subscription=update, update_mask=FieldMask(paths=["retry_policy"]))
    assert changed.retry_policy.maximum_backoff.total_seconds() == 7
    assert changed.ack_deadline_seconds == ACK_DEADLINE
    with pytest.raises(exceptions.InvalidArgument):
        backend.subscriber.update_subscription(subscription=update, update_mask=FieldMask(paths=["nonsense"]))


def test_deleted_subscription_is_gone(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    backend.subscriber.delete_subscription(subscription=subscription)
    with pytest.raises(exceptions.NotFound):
        backend.subscriber.get_subscription(subscription=subscription)
    assert backend.publish(topic, {"data": b"x"})


def test_streaming_pull_of_the_official_client(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    got: queue.Queue[bytes] = queue.Queue()

    def take(message: Any) -> None:
        got.put(message.data)
        message.ack()

    stream = backend.subscriber.subscribe(subscription, callback=take)
    backend.publish(topic, *({"data": str(number).encode()} for number in range(50)))
    found = {got.get(timeout=30) for _ in range(50)}
    stream.cancel()
    stream.result(timeout=30)
    assert found == {str(number).encode() for number in range(50)}
    assert got.empty()


def test_pull_of_a_push_subscription(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, subscription = backend.pair(name, endpoint.url(f"/{name}", 500))
    backend.publish(topic, {"data": b"x"})
    if backend.is_local:
        with pytest.raises(exceptions.FailedPrecondition):
            backend.pull_now(subscription)
    else:  # DIFFERENCE: the emulator lets a push subscription be pulled
        assert backend.pull_now(subscription) is not None


@pytest.mark.parametrize(
    "settings",
    [{"enable_message_ordering": True}, {"filter": 'attributes.a = "b"'}, {"enable_exactly_once_delivery": True}],
    ids=lambda settings: next(iter(settings)),
)
def test_unsupported_settings(backend: Backend, name: str, settings: dict[str, Any]) -> None:
    topic = backend.topic(name)
    if backend.is_local:  # DIFFERENCE, ours: refused, never silently ignored
        with pytest.raises(exceptions.MethodNotImplemented):
            backend.subscription(name, topic, **settings)
    else:
        backend.subscription(name, topic, **settings)
