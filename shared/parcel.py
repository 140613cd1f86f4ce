"""Unwrapping what a transport posts to a function: Pub/Sub push, CloudEvent or Cloud Task.

Never raises for what arrived: a parcel that cannot be opened says why, and still knows its delivery and its
digest.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from shared import ijson
from shared.errors import InvalidJsonError, MalformedMessageError, sanitise

Source = Literal["pubsub", "cloudevent", "tasks"]

# A push of Pub/Sub's largest message: 10 MB as base64, and 100 attributes of at most 1,280 bytes.
MAX_BODY_BYTES = 14_000_000
_EXCERPT = 500  # characters: enough to recognise what was sent
_DIAGNOSTIC = 1024  # characters: longer than any name that Google Cloud gives out

# What differs between deliveries, or copies, of one message, and so is no part of its digest.
_OF_THE_DELIVERY = frozenset({"messageId", "message_id", "publishTime", "publish_time"})
_OF_THE_COPY = ("CloudPubSubDeadLetter", "googclient_")


class UnreadableError(Exception):
    """What arrived cannot be read; its text says why, never with a value."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What the transport says of this delivery: diagnostics only, each None when absent or odd.

    `attempt` counts from 1. For a Cloud Task `message_id` is the task's name and `subscription` its queue.
    """

    source: Source
    message_id: str | None = None
    subscription: str | None = None
    attempt: int | None = None
    publish_time: str | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """What arrived, opened as far as it could be."""

    body: bytes
    delivery: Delivery
    content: bytes = b""
    attributes: Mapping[str, str] = field(default_factory=dict)
    problem: str | None = None
    essence: bytes = b""  # what is the same in every delivery of the same message

    def malformed(self, reason: str, delivery: Delivery | None = None) -> MalformedMessageError:
        """Return the error that says that this parcel holds no message of ours."""
        excerpt = sanitise(self.body[: 4 * _EXCERPT].decode("utf-8", "replace"), _EXCERPT)
        digest = hashlib.sha256(self.essence or self.body).hexdigest()
        return MalformedMessageError(reason, delivery or self.delivery, digest, excerpt)


def open_parcel(body: bytes, headers: Mapping[str, str]) -> Parcel:
    """Open what a function was posted; header names may be in any case."""
    lowered = {name.lower(): value for name, value in headers.items()}
    if "x-cloudtasks-taskname" in lowered or "x-cloudtasks-queuename" in lowered:
        return Parcel(body, _of_task(lowered), content=body, attributes=_trace(lowered))
    structured = lowered.get("content-type", "").lower().startswith("application/cloudevents+json")
    source: Source = "cloudevent" if structured or "ce-specversion" in lowered else "pubsub"
    try:
        outer = _object(load(body, MAX_BODY_BYTES), "the body")
        if structured:
            outer = _event_data(outer)
    except UnreadableError as error:
        return Parcel(body, Delivery(source), problem=str(error))
    return _of_push(body, outer, source, _trace(lowered))


def load(text: bytes, max_bytes: int) -> Any:
    """Parse JSON whose numbers may be anything; raises UnreadableError, also for a name that occurs twice."""
    if len(text) > max_bytes:
        raise UnreadableError(f"larger than {max_bytes} bytes")
    try:
        ijson.check_depth(text, ijson.MAX_DEPTH)
        return json.loads(text.decode("utf-8"), object_pairs_hook=_unique, parse_int=_int)
    except UnicodeDecodeError:
        raise UnreadableError("not UTF-8") from None
    except InvalidJsonError as error:
        raise UnreadableError(error.detail) from None
    except json.JSONDecodeError:
        raise UnreadableError("not JSON") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise UnreadableError("a name occurs twice")
    return members


def _int(literal: str) -> int | float:
    """Read an integer; one that no member here can mean becomes a float, which is the wrong type."""
    return int(literal) if len(literal) < 20 else float(literal[:20])


def _object(value: Any, what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise UnreadableError(f"{what} is not an object")
    return value


def _event_data(event: dict[str, Any]) -> dict[str, Any]:
    """Take the Pub/Sub data out of a structured CloudEvent."""
    if "data_base64" in event:
        return _object(load(_base64(event["data_base64"]), MAX_BODY_BYTES), "the event's data")
    return _object(event.get("data"), "the event's data")


def _of_push(body: bytes, outer: dict[str, Any], source: Source, trace: Mapping[str, str]) -> Parcel:
    message = outer.get("message")
    told: Mapping[str, Any] = message if isinstance(message, dict) else {}
    attributes = told.get("attributes")
    attributes = attributes if isinstance(attributes, dict) else {}
    delivery = Delivery(
        source,
        message_id=short_text(told.get("messageId", told.get("message_id"))),
        subscription=short_text(outer.get("subscription")),
        attempt=count(outer.get("deliveryAttempt")),
        publish_time=short_text(told.get("publishTime", told.get("publish_time"))),
    )
    texts = {name: str(value) for name, value in attributes.items() if isinstance(value, (str, int))}
    opened = Parcel(body, delivery, attributes={**trace, **texts}, essence=_essence(message, told, attributes))
    try:
        return replace(opened, content=_base64(_object(message, "the message").get("data")))
    except UnreadableError as error:
        return replace(opened, problem=str(error))


def _essence(message: Any, told: Mapping[str, Any], attributes: Mapping[str, Any]) -> bytes:
    """Give the parts of a message that every delivery and dead-letter copy of it has in common."""
    if not told:
        return json.dumps([message]).encode()
    kept = {name: value for name, value in told.items() if name not in _OF_THE_DELIVERY | {"attributes"}}
    own = {name: value for name, value in attributes.items() if not name.startswith(_OF_THE_COPY)}
    return json.dumps([kept, own], sort_keys=True).encode()


def _base64(data: Any) -> bytes:
    if not isinstance(data, str) or not data:
        raise UnreadableError("no data")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise UnreadableError("the data is not base64") from None


def _of_task(headers: Mapping[str, str]) -> Delivery:
    retries = count(headers.get("x-cloudtasks-taskretrycount"))
    return Delivery(
        "tasks",
        message_id=short_text(headers.get("x-cloudtasks-taskname")),
        subscription=short_text(headers.get("x-cloudtasks-queuename")),
        attempt=None if retries is None else retries + 1,
    )


def _trace(headers: Mapping[str, str]) -> dict[str, str]:
    return {"traceparent": headers["traceparent"]} if "traceparent" in headers else {}


def short_text(value: Any) -> str | None:
    """Return a diagnostic text, safe to store, or None for anything else."""
    return sanitise(value, _DIAGNOSTIC) or None if isinstance(value, str) else None


def count(value: Any) -> int | None:
    """Return a counter, given as a number or its decimal digits; None for anything else."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**9:
        return value
    return None
