"""Topics and publishing: the same cases against our Pub/Sub and Google's emulator."""

from __future__ import annotations

from typing import Any

import pytest
from google.api_core import exceptions

from tests.conformance.cases import Backend, data_of, subscription_of, topic_of
from tests.local.endpoint import Endpoint

MEGABYTE = 1_000_000
# DIFFERENCE: the service refuses a request over 10 MB; the emulator takes up to 10 MiB (10,485,760 bytes) and
# lets a larger one run into the client's deadline instead of refusing it.
NO_ANSWER = 3.0  # seconds to wait for an answer that does not come


def test_official_client_publishes_and_gets_ids(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    futures = [backend.publisher.publish(topic, str(number).encode(), n=str(number)) for number in range(20)]
    ids = {future.result(timeout=30) for future in futures}
    assert len(ids) == 20
    found = backend.pull(subscription, 20)
    assert {each.message.message_id for each in found} == ids
    assert {each.message.data.decode() for each in found} == {str(number) for number in range(20)}


def test_batch_of_1000_messages(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    ids = backend.publish(topic, *({"data": str(number).encode()} for number in range(1000)))
    found = {each.message.message_id: each.message.data for each in backend.pull(subscription, 1000)}
    assert found == {message_id: str(number).encode() for number, message_id in enumerate(ids)}


@pytest.mark.parametrize(
    "messages",
    [[], [{"data": b""}], [{"data": b"good"}, {}], [{"data": b"x"}] * 1001],
    ids=["no message", "empty message", "one empty of two", "1,001 messages"],
)
def test_malformed_requests_are_refused_whole(backend: Backend, name: str, messages: list[dict[str, Any]]) -> None:
    topic, subscription = backend.pair(name)
    with pytest.raises(exceptions.InvalidArgument):
        backend.publish(topic, *messages)
    assert backend.pull_now(subscription) == []


def test_case_12_message_of_9_9_megabytes_is_delivered(backend: Backend, endpoint: Endpoint, name: str) -> None:
    topic, _ = backend.pair(name, endpoint.url(f"/{name}"))  # the client cannot pull above 4 MiB here
    data = bytes(range(256)) * (9_900_000 // 256)
    backend.publish(topic, {"data": data})
    [request] = endpoint.wait(f"/{name}", 1)
    assert data_of(request.json["message"]) == data


@pytest.mark.parametrize(
    ("count", "size"),
    [(1, 10 * MEGABYTE), (1, 10_100_000), (10, 1_010_000)],
    ids=["10.0 MB", "10.1 MB", "batch of 10.1 MB"],
)
def test_case_12_request_just_over_10_megabytes(backend: Backend, name: str, count: int, size: int) -> None:
    topic, subscription = backend.pair(name)
    messages = [{"data": b"x" * size}] * count
    if backend.is_local:
        with pytest.raises(exceptions.InvalidArgument, match="too large"):
            backend.publish(topic, *messages)
        assert backend.pull_now(subscription) == []
    else:
        assert len(backend.publish(topic, *messages)) == count


def test_case_12_request_of_11_megabytes_is_not_accepted(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    refusal = exceptions.InvalidArgument if backend.is_local else exceptions.GoogleAPICallError
    with pytest.raises(refusal):
        backend.publish(topic, {"data": b"x" * 11 * MEGABYTE}, timeout=NO_ANSWER)
    assert backend.pull_now(subscription) == []


@pytest.mark.parametrize(
    "attributes",
    [{f"key{number}": "" for number in range(101)}, {"k" * 257: "v"}, {"k": "v" * 1025}],
    ids=["101 attributes", "key of 257 bytes", "value of 1,025 bytes"],
)
def test_attributes_beyond_the_quota(backend: Backend, name: str, attributes: dict[str, str]) -> None:
    topic = backend.topic(name)
    if backend.is_local:
        with pytest.raises(exceptions.InvalidArgument):
            backend.publish(topic, {"data": b"x", "attributes": attributes})
    else:  # DIFFERENCE: the emulator does not check this quota
        assert backend.publish(topic, {"data": b"x", "attributes": attributes})


def test_binary_and_unicode_survive(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    attributes = {"emoji 🧾": "é\u0000\n\u2028", "empty": "", "quotes": '"\\'}
    backend.publish(topic, {"data": bytes(range(256)), "attributes": attributes})
    [found] = backend.pull(subscription)
    assert found.message.data == bytes(range(256))
    assert dict(found.message.attributes) == attributes


def test_names_that_do_not_exist_or_exist_already(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    with pytest.raises(exceptions.NotFound):
        backend.publish(topic_of("nowhere"), {"data": b"x"})
    with pytest.raises(exceptions.NotFound):
        backend.publisher.get_topic(topic=topic_of("nowhere"))
    with pytest.raises(exceptions.NotFound):
        backend.publisher.delete_topic(topic=topic_of("nowhere"))
    with pytest.raises(exceptions.NotFound):
        backend.subscription("orphan", topic_of("nowhere"))
    with pytest.raises(exceptions.NotFound):
        backend.subscriber.get_subscription(subscription=subscription_of("nowhere"))
    with pytest.raises(exceptions.NotFound):
        backend.subscriber.acknowledge(subscription=subscription_of("nowhere"), ack_ids=["a"])
    with pytest.raises(exceptions.AlreadyExists):
        backend.topic(name)
    with pytest.raises(exceptions.AlreadyExists):
        backend.subscription(name, topic)
    assert backend.subscriber.get_subscription(subscription=subscription).topic == topic


@pytest.mark.parametrize("bad", ["projects/p/topics/1abc", "projects/p/topics/ab", "nonsense", ""])
def test_malformed_topic_names_are_refused(backend: Backend, bad: str) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        backend.publisher.create_topic(name=bad)


def test_listing_pages_through_all_topics(backend: Backend, name: str) -> None:
    wanted = {backend.topic(f"{name}-{number}") for number in range(5)}
    found = backend.publisher.list_topics(request={"project": "projects/conformance", "page_size": 2})
    assert wanted <= {topic.name for topic in found}


def test_deleted_topic_takes_nothing_and_leaves_its_subscription(backend: Backend, name: str) -> None:
    topic, subscription = backend.pair(name)
    backend.publish(topic, {"data": b"before"})
    backend.publisher.delete_topic(topic=topic)
    with pytest.raises(exceptions.NotFound):
        backend.publish(topic, {"data": b"after"})
    assert backend.subscriber.get_subscription(subscription=subscription).topic == "_deleted-topic_"
    assert [each.message.data for each in backend.pull(subscription)] == [b"before"]


def test_topic_of_the_same_name_is_a_new_topic(backend: Backend, name: str) -> None:
    topic, old = backend.pair(name)
    backend.publisher.delete_topic(topic=topic)
    backend.topic(name)
    new = backend.subscription(f"{name}-new", topic)
    backend.publish(topic, {"data": b"x"})
    assert len(backend.pull(new)) == 1
    assert backend.pull_now(old) == []


def test_subscription_gets_only_what_is_published_after_it(backend: Backend, name: str) -> None:
    topic = backend.topic(name)
    backend.publish(topic, {"data": b"before"})
    subscription = backend.subscription(name, topic)
    backend.publish(topic, {"data": b"after"})
    assert [each.message.data for each in backend.pull(subscription)] == [b"after"]
