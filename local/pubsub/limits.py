"""What Pub/Sub refuses: names, sizes and settings out of bounds.

Sources: the API reference of google.pubsub.v1 and cloud.google.com/pubsub/quotas.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import grpc

from local.serving.rpc import RefusedError, invalid, unimplemented

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_REQUEST_BYTES: Final = 10_000_000  # of a publish request, and so of a message
MAX_MESSAGES: Final = 1000  # of a publish request
MAX_ATTRIBUTES, MAX_KEY_BYTES, MAX_VALUE_BYTES = 100, 256, 1024
MAX_ORDERING_KEY_BYTES = 1024
ACK_DEADLINES: Final = range(10, 601)  # seconds
DEFAULT_ACK_DEADLINE = 10
MAX_BACKOFF = 600.0  # seconds
DELIVERY_ATTEMPTS: Final = range(5, 101)
RETENTION: Final = (600.0, 31 * 86400.0)  # seconds
DEFAULT_RETENTION = 7 * 86400

_ID = r"(?!goog)[A-Za-z][A-Za-z0-9._~+%-]{2,254}"
_NAMES: Final = {kind: re.compile(rf"projects/[^/]+/{kind}/{_ID}", re.ASCII) for kind in ("topics", "subscriptions")}
# Fields of a subscription that change what is delivered and are not built here; refused, never ignored.
_UNSUPPORTED: Final = (
    "bigquery_config",
    "cloud_storage_config",
    "bigtable_config",
    "enable_message_ordering",
    "enable_exactly_once_delivery",
    "filter",
    "message_transforms",
    "retain_acked_messages",
)
UPDATABLE: Final = frozenset(
    {
        "ack_deadline_seconds",
        "dead_letter_policy",
        "expiration_policy",
        "labels",
        "message_retention_duration",
        "push_config",
        "retry_policy",
    }
)


def check_name(kind: str, name: str) -> None:
    """Refuse a malformed full name; `kind` is topics or subscriptions."""
    if not _NAMES[kind].fullmatch(name):
        raise invalid(f"Invalid [{kind}] name: (name={name})")


def check_publish(request: Any) -> None:
    """Refuse an empty or oversize request, and messages that are empty or have oversize attributes."""
    if not request.messages:
        raise invalid("No messages to publish")
    if len(request.messages) > MAX_MESSAGES:
        raise invalid("Too many messages to publish")
    size = request.ByteSize()
    if size > MAX_REQUEST_BYTES:
        raise invalid(
            f"The value for request_size is too large. You passed {size} in the request, "
            f"but the maximum value is {MAX_REQUEST_BYTES}."
        )
    for message in request.messages:
        if not message.data and not message.attributes:
            raise invalid("Some messages are empty")
        if message.attributes or message.ordering_key:
            _check_attributes(message)


def _check_attributes(message: Any) -> None:
    too_large = (
        len(message.attributes) > MAX_ATTRIBUTES
        or any(_bytes(key) > MAX_KEY_BYTES for key in message.attributes)
        or any(_bytes(value) > MAX_VALUE_BYTES for value in message.attributes.values())
    )
    if too_large:
        raise invalid("The attributes of a message are too many or too large.")
    if _bytes(message.ordering_key) > MAX_ORDERING_KEY_BYTES:
        raise invalid("The ordering key of a message is too large.")


def _bytes(text: str) -> int:
    return len(text.encode())


def check_subscription(config: Any) -> None:
    """Fill in a subscription's defaults and refuse settings out of bounds or not supported here."""
    check_name("subscriptions", config.name)
    for field in _UNSUPPORTED:
        if config.HasField(field) if _is_message(config, field) else getattr(config, field):
            raise unimplemented(f"The local Pub/Sub does not support {field}.")
    config.ack_deadline_seconds = config.ack_deadline_seconds or DEFAULT_ACK_DEADLINE
    if config.ack_deadline_seconds not in ACK_DEADLINES:
        raise invalid("ack_deadline_secs out of bounds")
    _check_retention(config)
    _check_push(config.push_config)
    if config.HasField("retry_policy"):
        _check_retry(config.retry_policy)
    if config.HasField("dead_letter_policy"):
        _check_dead_letter(config.dead_letter_policy)


def _is_message(config: Any, field: str) -> bool:
    described = config.DESCRIPTOR.fields_by_name[field]
    return described.message_type is not None and not described.is_repeated


def _check_retention(config: Any) -> None:
    if not config.HasField("message_retention_duration"):
        config.message_retention_duration.seconds = DEFAULT_RETENTION
    low, high = RETENTION
    if not low <= seconds(config.message_retention_duration) <= high:
        raise invalid("message_retention_duration is out of bounds: 10 minutes to 31 days.")


def _check_push(config: Any) -> None:
    if config.HasField("no_wrapper"):
        raise unimplemented("The local Pub/Sub does not support no_wrapper.")
    if config.push_endpoint and not re.match(r"https?://[^/]", config.push_endpoint):
        raise invalid(f"Invalid push endpoint: (endpoint={config.push_endpoint})")


def _check_retry(policy: Any) -> None:
    if not policy.HasField("minimum_backoff"):
        policy.minimum_backoff.seconds = 10
    if not policy.HasField("maximum_backoff"):
        policy.maximum_backoff.seconds = 600
    low, high = seconds(policy.minimum_backoff), seconds(policy.maximum_backoff)
    if not 0 <= low <= MAX_BACKOFF or not low <= high <= MAX_BACKOFF:
        raise invalid("The backoffs must lie between 0s and 600s, the minimum not above the maximum.")


def _check_dead_letter(policy: Any) -> None:
    policy.max_delivery_attempts = policy.max_delivery_attempts or DELIVERY_ATTEMPTS.start
    if policy.max_delivery_attempts not in DELIVERY_ATTEMPTS:
        raise RefusedError(
            grpc.StatusCode.OUT_OF_RANGE,
            f"The value for max_delivery_attempts is out of bounds: {policy.max_delivery_attempts} is not "
            f"between {DELIVERY_ATTEMPTS.start} and {DELIVERY_ATTEMPTS.stop - 1}.",
        )


def check_mask(paths: Iterable[str]) -> None:
    """Refuse an update of nothing, of an unknown field or of one that cannot change."""
    unknown = sorted({path.partition(".")[0] for path in paths} - UPDATABLE)
    if unknown or not list(paths):
        raise invalid(f"Invalid update_mask: {', '.join(unknown) or 'it names no field'}.")


def seconds(duration: Any) -> float:
    """Return a protobuf Duration in seconds."""
    return float(duration.seconds) + float(duration.nanos) / 1e9
