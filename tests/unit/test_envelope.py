"""Messages from all three transports, and what is no message (cases 11, 29)."""

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.envelope import Delivery, Message, decode, decode_dead_letter, encode, misdirected
from shared.errors import MalformedMessageError

ID = UUID("01936b1e-7c00-7000-8000-000000000001")
DATA = encode(ID, "invoice.generate", "record", 3)
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SUBSCRIPTION = "projects/p/subscriptions/invoice-record"
JSON = {"Content-Type": "application/json"}


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def push(data: bytes = DATA, **more: Any) -> dict[str, Any]:
    """A push as Pub/Sub sends it, both spellings of its members included."""
    message = {
        "attributes": {},
        "data": b64(data),
        "messageId": "2070443601311540",
        "message_id": "2070443601311540",
        "publishTime": "2026-01-31T08:00:00.5Z",
        "publish_time": "2026-01-31T08:00:00.5Z",
    }
    return {"message": message | more, "subscription": SUBSCRIPTION, "deliveryAttempt": 4}


def posted(body: Any, headers: Mapping[str, str] = JSON) -> Message:
    return decode(json.dumps(body).encode(), headers)


def refused(body: bytes, headers: Mapping[str, str] = JSON) -> MalformedMessageError:
    with pytest.raises(MalformedMessageError) as caught:
        decode(body, headers)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    return caught.value


def test_a_message_carries_ids_only() -> None:
    assert json.loads(DATA) == {
        "v": 1,
        "operation_id": str(ID),
        "type": "invoice.generate",
        "step": "record",
        "dispatch": 3,
    }


def test_a_pubsub_push() -> None:
    assert posted(push(attributes={"traceparent": TRACE})) == Message(
        operation_id=ID,
        type="invoice.generate",
        step="record",
        dispatch=3,
        traceparent=TRACE,
        delivery=Delivery("pubsub", "2070443601311540", SUBSCRIPTION, 4, "2026-01-31T08:00:00.5Z"),
    )


def test_a_structured_cloud_event() -> None:
    event = {
        "specversion": "1.0",
        "id": "2070443601311540",
        "source": "//pubsub.googleapis.com/projects/p/topics/invoice-record",
        "type": "google.cloud.pubsub.topic.v1.messagePublished",
        "datacontenttype": "application/json",
        "data": push(),
    }
    headers = {"content-type": "application/cloudevents+json; charset=UTF-8"}
    message = posted(event, headers)
    assert (message.operation_id, message.dispatch) == (ID, 3)
    assert message.delivery == Delivery("cloudevent", "2070443601311540", SUBSCRIPTION, 4, "2026-01-31T08:00:00.5Z")
    encoded = event | {"data_base64": b64(json.dumps(push()).encode())}
    del encoded["data"]
    assert posted(encoded, headers) == message


def test_a_binary_cloud_event() -> None:
    headers = JSON | {
        "Ce-Specversion": "1.0",
        "Ce-Id": "2070443601311540",
        "Ce-Type": "google.cloud.pubsub.topic.v1.messagePublished",
        "Ce-Source": "//pubsub.googleapis.com/projects/p/topics/invoice-record",
        "Traceparent": TRACE,
    }
    message = posted(push(), headers)
    assert message.operation_id == ID
    assert message.traceparent == TRACE
    assert message.delivery.source == "cloudevent"


def test_a_cloud_task() -> None:
    headers = {
        "X-CloudTasks-TaskName": "t-123",
        "X-CloudTasks-QueueName": "invoice-record",
        "X-CloudTasks-TaskRetryCount": "2",
        "X-CloudTasks-TaskExecutionCount": "0",
        "traceparent": TRACE,
    }
    assert decode(DATA, headers) == Message(
        ID, "invoice.generate", "record", 3, TRACE, Delivery("tasks", "t-123", "invoice-record", 3, None)
    )


@pytest.mark.parametrize("count", ["", "-1", "x", "1.5", "١", "9" * 20])
def test_a_cloud_task_with_an_odd_counter(count: str) -> None:
    assert decode(DATA, {"x-cloudtasks-queuename": "q", "x-cloudtasks-taskretrycount": count}).delivery == (
        Delivery("tasks", None, "q")
    )


@pytest.mark.parametrize(
    "lacking",
    [
        lambda body: body["message"].pop("attributes"),
        lambda body: (body["message"].pop("messageId"), body["message"].pop("message_id")),
        lambda body: body.pop("subscription"),
        lambda body: body.pop("deliveryAttempt"),
        lambda body: (body["message"].pop("publishTime"), body["message"].pop("publish_time")),
        lambda body: body["message"].update(attributes=None, messageId=7, publishTime=[]),
        lambda body: body["message"].update(attributes=[1, 2]),
        lambda body: body["message"].update(attributes={"traceparent": 7}),
        lambda body: body.update(subscription={}, deliveryAttempt="many"),
        lambda body: body.update(deliveryAttempt=True),
        lambda body: body.update(deliveryAttempt=-1),
        lambda body: body.update(deliveryAttempt=10**30),
        lambda body: body.update(more=1e308),
    ],
)
def test_case_11_what_the_delivery_says_of_itself_may_be_absent_or_odd(
    lacking: Callable[[dict[str, Any]], Any],
) -> None:
    body = push()
    lacking(body)
    message = posted(body)
    assert (message.operation_id, message.step, message.dispatch) == (ID, "record", 3)


def test_case_9_diagnostics_are_storable_and_bounded() -> None:
    body = push(messageId="a\0b\ud800", publishTime="t" * 5000) | {"subscription": "\0"}
    delivery = posted(body).delivery
    assert delivery.message_id == "ab"
    assert delivery.publish_time is not None
    assert len(delivery.publish_time) == 1024
    assert delivery.subscription is None


@pytest.mark.parametrize(
    "traceparent",
    ["", "x", TRACE.upper(), TRACE + "-00", "ff" + TRACE[2:], f"00-{'0' * 32}-00f067aa0ba902b7-01", TRACE + "\n"],
)
def test_a_bad_trace_context_is_none(traceparent: str) -> None:
    assert posted(push(attributes={"traceparent": traceparent})).traceparent is None


def test_members_of_a_later_code_are_ignored() -> None:
    data = json.dumps(json.loads(DATA) | {"priority": 5}).encode()
    assert posted(push(data)).dispatch == 3


def altered(**members: Any) -> bytes:
    found = json.loads(DATA) | members
    return json.dumps({name: value for name, value in found.items() if value is not ...}).encode()


MALFORMED_BODIES = [
    (b"", "not JSON"),
    (b" ", "not JSON"),
    (b"\xff\xfe", "not UTF-8"),
    (b"not json", "not JSON"),
    (b"[]", "the body is not an object"),
    (b"[" * 100_000, "nested"),
    (b"[" + b"9" * 100_000 + b"]", "the body is not an object"),
    (b"null", "the body is not an object"),
    (b'"text"', "the body is not an object"),
    (b"{}", "the message is not an object"),
    (b'{"message":null}', "the message is not an object"),
    (b'{"message":[]}', "the message is not an object"),
    (b'{"message":"text"}', "the message is not an object"),
    (b'{"message":{}}', "no data"),
    (b'{"message":{"data":null}}', "no data"),
    (b'{"message":{"data":""}}', "no data"),
    (b'{"message":{"data":7}}', "no data"),
    (b'{"message":{"data":{}}}', "no data"),
    (b'{"message":{"data":"%%%"}}', "not base64"),
    (b'{"message":{"data":"YQ"}}', "not base64"),
    (b'{"message":{"data":"YQ==\\n"}}', "not base64"),
    ('{"message":{"data":"é"}}'.encode(), "not base64"),
    (b'{"message":{},"message":{}}', "twice"),
    (DATA, "the message is not an object"),
    (b" " * 15_000_000, "larger than"),
]


@pytest.mark.parametrize(("body", "reason"), MALFORMED_BODIES, ids=lambda part: repr(part[:30]))
def test_case_11_a_malformed_body(body: bytes, reason: str) -> None:
    error = refused(body)
    assert reason in error.reason
    assert len(error.digest) == 64
    assert len(error.excerpt) <= 500
    assert refused(body).digest == error.digest


MALFORMED_DATA = [
    (b"\xff", "not UTF-8"),
    (b"x", "not JSON"),
    (b"[]", "not an object"),
    (b"{}", "v is missing"),
    (altered(v=2), "version"),
    (altered(v=0), "version"),
    (altered(v=True), "v is"),
    (altered(v="1"), "v is"),
    (altered(v=...), "v is"),
    (altered(operation_id=...), "operation_id"),
    (altered(operation_id=7), "operation_id"),
    (altered(operation_id=""), "operation_id"),
    (altered(operation_id=str(ID).replace("-", "")), "operation_id"),
    (altered(operation_id="{" + str(ID) + "}"), "operation_id"),
    (altered(operation_id=str(ID) + "\0"), "operation_id"),
    (altered(type=...), "type"),
    (altered(type=""), "type"),
    (altered(type="x" * 101), "type"),
    (altered(type="a\0"), "type"),
    (altered(step=["record"]), "step"),
    (altered(step="record\n"), "step"),
    (altered(dispatch=...), "dispatch"),
    (altered(dispatch=None), "dispatch"),
    (altered(dispatch=True), "dispatch"),
    (altered(dispatch=1.5), "dispatch"),
    (altered(dispatch=3.0), "dispatch"),
    (altered(dispatch=-1), "dispatch"),
    (altered(dispatch="3"), "dispatch"),
    (altered(dispatch=2**31), "dispatch"),
    (altered(dispatch=10**30), "dispatch"),
    (altered(note="x" * 5000), "larger than"),
    (DATA[:-1] + b',"dispatch":4}', "twice"),
    (b'{"a":' * 50, "nested"),
]


@pytest.mark.parametrize(("data", "reason"), MALFORMED_DATA, ids=lambda part: repr(part[-30:]))
def test_case_11_malformed_data_from_every_transport(data: bytes, reason: str) -> None:
    event = {"specversion": "1.0", "data": push(data)}
    structured = {"content-type": "application/cloudevents+json"}
    errors = [
        refused(json.dumps(push(data)).encode()),
        refused(json.dumps(push(data)).encode(), {"ce-specversion": "1.0"}),
        refused(json.dumps(event).encode(), structured),
        refused(data, {"x-cloudtasks-taskname": "t"}),
    ]
    for error in errors:
        assert reason in error.reason
    assert [error.delivery.source for error in errors] == ["pubsub", "cloudevent", "cloudevent", "tasks"]
    assert errors[0].digest == errors[1].digest == errors[2].digest


@pytest.mark.parametrize(
    "event", [b"", b"[]", b"{}", b'{"data":null}', b'{"data_base64":"%"}', b'{"data_base64":"W10="}', b'{"data":{}}']
)
def test_case_11_a_malformed_cloud_event(event: bytes) -> None:
    assert refused(event, {"content-type": "application/cloudevents+json"}).delivery.source == "cloudevent"


def test_case_11_every_delivery_of_a_malformed_message_has_one_digest() -> None:
    first = push(b"garbage")
    again = push(b"garbage", messageId="another", message_id="another", publishTime="later", publish_time="later")
    again |= {"deliveryAttempt": 5, "subscription": "other"}
    other = push(b"other garbage")
    digests = [refused(json.dumps(body).encode()).digest for body in (first, again, other)]
    assert digests[0] == digests[1] != digests[2]
    attributed = push(b"garbage", attributes={"source": "shop"})
    assert refused(json.dumps(attributed).encode()).digest != digests[0]


def test_case_49_a_malformed_message_is_not_quoted_in_the_error() -> None:
    error = refused(json.dumps(push(b'{"v":1,"operation_id":"canary"}', attributes={"a": "canary"})).encode())
    assert "canary" not in str(error)


def test_case_9_the_excerpt_is_storable() -> None:
    error = refused(b'{"\x00\xff' + "é".encode() * 1000)
    assert "\0" not in error.excerpt
    error.excerpt.encode()
    assert len(error.excerpt) == 500


@given(st.binary(max_size=200), st.sampled_from([{}, {"x-cloudtasks-taskname": "t"}, {"ce-specversion": "1.0"}]))
def test_case_11_any_body_is_a_message_or_malformed(body: bytes, headers: dict[str, str]) -> None:
    refused(body, headers)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["data", "attributes", "messageId", "publishTime", "x"])


@given(
    st.fixed_dictionaries(
        {}, optional={"message": st.dictionaries(NAMES, PLAIN), "subscription": PLAIN, "deliveryAttempt": PLAIN}
    )
)
def test_case_11_any_push_is_refused_the_same_way_at_every_delivery(body: dict[str, Any]) -> None:
    first = refused(json.dumps(body).encode())
    if "message" in body:
        again = body | {"deliveryAttempt": 99}
        assert refused(json.dumps(again).encode()).digest == first.digest


def dead(data: bytes = DATA, **attributes: Any) -> bytes:
    named = {f"CloudPubSubDeadLetterSource{name}": value for name, value in attributes.items()}
    return json.dumps(push(data, attributes=named, messageId=str(len(named)))).encode()


@pytest.mark.parametrize(
    ("told", "count"),
    [
        ("5", 5),
        ("1", 1),
        ("0", 0),
        ("", None),
        ("many", None),
        ("-1", None),
        ("1.5", None),
        (7, 7),
        (None, None),
        ("9" * 30, None),
    ],
)
def test_case_29_a_dead_letter(told: Any, count: int | None) -> None:
    letter = decode_dead_letter(dead(DeliveryCount=told, Subscription="invoice-record"), JSON)
    assert letter.message.operation_id == ID
    assert (letter.source_subscription, letter.delivery_count) == ("invoice-record", count)


def test_case_29_a_dead_letter_without_its_attributes() -> None:
    letter = decode_dead_letter(dead(), JSON)
    assert (letter.source_subscription, letter.delivery_count) == (None, None)
    assert letter.message.delivery.subscription == SUBSCRIPTION


def test_case_29_copies_of_a_malformed_dead_letter_have_one_digest() -> None:
    digests = set()
    for attributes in ({}, {"DeliveryCount": "5"}, {"DeliveryCount": "1", "Subscription": "invoice-record"}):
        with pytest.raises(MalformedMessageError) as caught:
            decode_dead_letter(dead(b"garbage", **attributes), JSON)
        digests.add(caught.value.digest)
    assert len(digests) == 1
    assert caught.value.delivery.subscription == "invoice-record"
    assert caught.value.delivery.attempt == 1


def test_a_misdirected_message_has_one_digest() -> None:
    first, again = posted(push()), posted(push(messageId="another"))
    assert misdirected(first, "not ours").digest == misdirected(again, "not ours").digest
    assert misdirected(first, "not ours").reason == "not ours"
    assert misdirected(first, "not ours").delivery == first.delivery
