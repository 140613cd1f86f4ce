"""Push delivery: the same cases against our Pub/Sub and Google's emulator."""

from __future__ import annotations

import re
import time
from itertools import pairwise

import pytest

from tests.conformance.cases import ACK_DEADLINE, Backend, Scenes, backoff, data_of
from tests.local.endpoint import Endpoint

# Documented to acknowledge (cloud.google.com/pubsub/docs/push): 102, 200, 201, 202, 204.
# DIFFERENCE: Google's emulator takes 203 for an acknowledgement, and 202 for none.
ACKNOWLEDGING = {"local": {102, 200, 201, 202, 204}, "google": {102, 200, 201, 203, 204}}
STATUSES = (102, 200, 201, 202, 203, 204, 206, 302, 400, 404, 429, 500, 503)


def test_envelope_is_googles_wrapped_form(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, subscription = backend.pair(name, endpoint.url(f"/{name}"))
    [message_id] = backend.publish(topic, {"data": b"hello", "attributes": {"colour": "grün"}})
    [request] = endpoint.wait(f"/{name}", 1)
    assert request.method == "POST"
    assert request.headers["Content-Type"] == "application/json"
    envelope = request.json
    message = envelope["message"]
    assert set(envelope) == {"message", "subscription"}
    assert envelope["subscription"] == subscription
    assert message["data"] == "aGVsbG8="
    assert message["attributes"] == {"colour": "grün"}
    assert message["messageId"] == message["message_id"] == message_id
    assert message["publishTime"] == message["publish_time"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", message["publishTime"])
    assert "orderingKey" not in message


def test_envelope_of_a_message_without_data_or_attributes(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}"))
    backend.publish(topic, {"attributes": {"only": "this"}})
    backend.publish(topic, {"data": b"only this"})
    messages = [request.json["message"] for request in endpoint.wait(f"/{name}", 2)]
    [bare] = [message for message in messages if not data_of(message)]
    [plain] = [message for message in messages if data_of(message)]
    if backend.is_local:
        assert "data" not in bare
        assert "attributes" not in plain
    else:  # DIFFERENCE: the emulator sends empty members where the service sends none
        assert bare["data"] == ""
        assert plain["attributes"] == {}


def test_ordering_key_is_in_the_envelope(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}"))
    backend.publish(topic, {"data": b"x", "ordering_key": "customer-1"})
    [request] = endpoint.wait(f"/{name}", 1)
    # DIFFERENCE: the emulator leaves the key out of a push
    assert request.json["message"].get("orderingKey") == ("customer-1" if backend.is_local else None)


def test_each_status_acknowledges_or_not(backend: Backend, endpoint: Endpoint, name: str) -> None:
    for status in STATUSES:
        topic, _ = backend.pair(f"{name}-{status}", endpoint.url(f"/{name}-{status}", status, 200))
        backend.publish(topic, {"data": b"x"})
    for status in set(STATUSES) - ACKNOWLEDGING[backend.kind]:
        assert len(endpoint.wait(f"/{name}-{status}", 2)) == 2, status
    time.sleep(2.5)  # more than both servers take to deliver again
    counts = {status: len(endpoint.received(f"/{name}-{status}")) for status in STATUSES}
    assert counts == {status: 1 if status in ACKNOWLEDGING[backend.kind] else 2 for status in STATUSES}


def test_nack_is_followed_by_the_same_message(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}", 500, 503, 200))
    [message_id] = backend.publish(topic, {"data": b"again", "attributes": {"a": "b"}})
    requests = endpoint.wait(f"/{name}", 3)
    assert {request.json["message"]["messageId"] for request in requests} == {message_id}
    assert len({request.body for request in requests}) == 1


def test_refused_connection_is_a_nack(backend: Backend, endpoint: Endpoint, name: str) -> None:
    later = Endpoint()
    url = later.url(f"/{name}")
    later.close()
    topic, subscription = backend.pair(name, url)
    backend.publish(topic, {"data": b"x"})
    time.sleep(0.3)
    backend.subscriber.modify_push_config(
        subscription=subscription, push_config={"push_endpoint": endpoint.url(f"/{name}")}
    )
    assert data_of(endpoint.wait(f"/{name}", 1)[0].json["message"]) == b"x"


def test_push_and_pull_change_places(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, subscription = backend.pair(name)
    backend.publish(topic, {"data": b"first"})
    backend.subscriber.modify_push_config(
        subscription=subscription, push_config={"push_endpoint": endpoint.url(f"/{name}")}
    )
    assert data_of(endpoint.wait(f"/{name}", 1)[0].json["message"]) == b"first"
    backend.subscriber.modify_push_config(subscription=subscription, push_config={})
    time.sleep(1.5)  # the emulator's push loop ends at its next turn
    backend.publish(topic, {"data": b"second"})
    assert [each.message.data for each in backend.pull(subscription)] == [b"second"]
    assert len(endpoint.received(f"/{name}")) == 1


def test_every_message_of_a_full_batch_is_pushed(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}"))
    ids = backend.publish(topic, *({"data": str(number).encode()} for number in range(1000)))
    requests = endpoint.wait(f"/{name}", 1000)
    assert {request.json["message"]["messageId"] for request in requests} == set(ids)


def test_case_27_ack_deadline_is_the_push_timeout(backend: Backend, endpoint: Endpoint, scenes: Scenes) -> None:
    first, second = endpoint.wait(scenes.slow, 2)[:2]
    assert first.json == second.json
    assert second.at - first.at > ACK_DEADLINE - 0.5


def test_backoff_of_the_retry_policy_is_honoured(backend: Backend, endpoint: Endpoint, scenes: Scenes) -> None:
    requests = endpoint.wait(scenes.backoff, 4)
    gaps = [later.at - earlier.at for earlier, later in pairwise(requests)]
    assert all(gap > least - 0.1 for gap, least in zip(gaps, (1, 2, 2), strict=True)), gaps


def test_dead_letter_carries_googles_attributes(backend: Backend, endpoint: Endpoint, scenes: Scenes) -> None:
    letter = endpoint.wait(f"{scenes.prefix}-letters", 1)[0].json["message"]
    original = endpoint.received(scenes.dead)[0].json["message"]
    attributes = letter["attributes"]
    published = attributes.pop("CloudPubSubDeadLetterSourceTopicPublishTime")
    assert attributes == {
        "own": "1",
        "CloudPubSubDeadLetterSourceDeliveryCount": "5",
        "CloudPubSubDeadLetterSourceSubscription": "scene-dead",
        "CloudPubSubDeadLetterSourceSubscriptionProject": "conformance",
    }
    # DIFFERENCE: the service writes the offset as +00:00, the emulator as Z
    moment, zone = original["publishTime"].removesuffix("Z"), "+00:00" if backend.is_local else "Z"
    assert published == moment + zone
    assert data_of(letter) == data_of(original) == b"dead"
    assert letter["messageId"] != original["messageId"]
    assert len(endpoint.received(scenes.dead)) == 5


def test_delivery_attempt_counts_up_with_a_dead_letter_policy(
    backend: Backend, endpoint: Endpoint, scenes: Scenes
) -> None:
    attempts = [request.json.get("deliveryAttempt") for request in endpoint.wait(scenes.dead, 5)]
    # DIFFERENCE: the emulator never sends deliveryAttempt in a push
    assert attempts == ([1, 2, 3, 4, 5] if backend.is_local else [None] * 5)
    letter = endpoint.wait(f"{scenes.prefix}-letters", 1)[0].json
    assert "deliveryAttempt" not in letter  # the dead letters' subscription has no such policy


def test_push_is_signed(backend: Backend, endpoint: Endpoint, name: str) -> None:
    push = {
        "push_endpoint": endpoint.url(f"/{name}"),
        "oidc_token": {"service_account_email": "push@conformance.iam.gserviceaccount.com"},
    }
    topic, _ = backend.pair(name, push_config=push)
    backend.publish(topic, {"data": b"x"})
    header = endpoint.wait(f"/{name}", 1)[0].headers.get("Authorization")
    if backend.is_local:  # its claims and signature: tests/local/test_signing.py
        assert re.fullmatch(r"Bearer [\w-]+\.[\w-]+\.[\w-]+", header or "")
    else:  # DIFFERENCE: the emulator ignores oidc_token
        assert header is None


@pytest.mark.parametrize("field", ["minimum_backoff", "maximum_backoff"])
def test_backoff_out_of_bounds_is_refused(backend: Backend, name: str, field: str) -> None:
    topic = backend.topic(name)
    policy = backoff(1, 2)
    policy[field].FromSeconds(601)
    with pytest.raises(Exception, match="backoff"):
        backend.subscription(name, topic, retry_policy=policy)
