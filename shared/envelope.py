"""The message that starts a step, and reading it from whatever delivers it.

A message carries ids only: operation, type, step, dispatch. It arrives wrapped by a Pub/Sub push, in a
CloudEvent (structured or binary mode) that holds a Pub/Sub message, or as the body of a Cloud Task. The data
decides; what the delivery says of itself (attributes, message id, subscription, counters) is a diagnostic
that may be absent or odd. Anything else is a MalformedMessageError with a digest, so that it is recorded once
and then acknowledged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from shared.errors import MalformedMessageError
from shared.parcel import Delivery, Parcel, UnreadableError, count, load, open_parcel, short_text

__all__ = [
    "VERSION",
    "DeadLetter",
    "Delivery",
    "Message",
    "decode",
    "decode_dead_letter",
    "encode",
    "misdirected",
]

VERSION = 1
_ENCODE = json.JSONEncoder(separators=(",", ":")).encode  # json.dumps would make an encoder for each message
MAX_CONTENT_BYTES = 4096  # ids only: many times the longest message that `encode` makes
_MAX_INTEGER = 2**31 - 1  # as the column has it

_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_NAME = re.compile(r"[a-z][a-z0-9_.]{0,99}")
# W3C Trace Context §3.2: version (not ff), trace id and parent id (neither all zeros), flags.
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True)
class Message:
    """One dispatch of one step, as it was delivered; `traceparent` is valid W3C Trace Context or None."""

    operation_id: UUID
    type: str
    step: str
    dispatch: int
    traceparent: str | None
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that Pub/Sub gave up on: where it came from, and how often it was delivered there.

    `source_subscription` and `delivery_count` are None when Pub/Sub did not say so, or said no number.
    """

    message: Message
    source_subscription: str | None
    delivery_count: int | None


def encode(operation_id: UUID, type: str, step: str, dispatch: int) -> bytes:  # noqa: A002 - DESIGN's word
    """Return a message's data: a JSON object of ids and the version of this format, nothing else."""
    members = {
        "v": VERSION,
        "operation_id": str(operation_id),
        "type": type,
        "step": step,
        "dispatch": dispatch,
    }
    return _ENCODE(members).encode()


def decode(body: bytes, headers: Mapping[str, str]) -> Message:
    """Read the message from what a step function was posted.

    Members of the data that this version does not know are ignored, so that old code reads what new code
    sends. Raises MalformedMessageError.
    """
    parcel = open_parcel(body, headers)
    try:
        return _message(parcel)
    except UnreadableError as error:
        raise parcel.malformed(str(error)) from None


def decode_dead_letter(body: bytes, headers: Mapping[str, str]) -> DeadLetter:
    """Read a dead letter from what `dead_letter` was posted.

    Raises MalformedMessageError, whose delivery then names the source subscription and its delivery count,
    and whose digest is the same for every copy of the same message.
    """
    parcel = open_parcel(body, headers)
    subscription = short_text(parcel.attributes.get("CloudPubSubDeadLetterSourceSubscription"))
    deliveries = count(parcel.attributes.get("CloudPubSubDeadLetterSourceDeliveryCount"))
    try:
        return DeadLetter(_message(parcel), subscription, deliveries)
    except UnreadableError as error:
        source = replace(parcel.delivery, subscription=subscription or parcel.delivery.subscription, attempt=deliveries)
        raise parcel.malformed(str(error), source) from None


def misdirected(message: Message, reason: str) -> MalformedMessageError:
    """Return the error for a message that can be read but is nobody's; every delivery has the same digest."""
    data = encode(message.operation_id, message.type, message.step, message.dispatch)
    return Parcel(data, message.delivery).malformed(reason)


def _message(parcel: Parcel) -> Message:
    if parcel.problem:
        raise UnreadableError(parcel.problem)
    members = load(parcel.content, MAX_CONTENT_BYTES)
    if not isinstance(members, dict):
        raise UnreadableError("the data is not an object")
    if _integer(members, "v") != VERSION:
        raise UnreadableError("a version of the message that this code does not know")
    return Message(
        operation_id=UUID(_matching(members, "operation_id", _UUID)),
        type=_matching(members, "type", _NAME),
        step=_matching(members, "step", _NAME),
        dispatch=_integer(members, "dispatch"),
        traceparent=_traceparent(parcel.attributes.get("traceparent")),
        delivery=parcel.delivery,
    )


def _matching(members: Mapping[str, Any], name: str, pattern: re.Pattern[str]) -> str:
    value = members.get(name)
    if not isinstance(value, str) or not pattern.fullmatch(value):
        raise UnreadableError(f"{name} is missing or wrong")
    return value


def _integer(members: Mapping[str, Any], name: str) -> int:
    value = members.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_INTEGER:
        raise UnreadableError(f"{name} is missing or wrong")
    return value


def _traceparent(value: str | None) -> str | None:
    return value if value and _TRACEPARENT.fullmatch(value) else None
