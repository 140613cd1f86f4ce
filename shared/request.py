"""Reading what a caller sends: the body of `POST …/operations`, its key and its tenant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from shared import ijson
from shared.errors import InvalidJsonError, InvalidRequestError, JsonTooLargeError
from shared.ijson import JsonValue
from shared.pipeline import Pipeline

# An input is read whole into memory by intake, PostgreSQL and each step, several at once on a small instance.
MAX_BODY_BYTES = 4_000_000

_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_QUOTED = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\])*)"')
_TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_TYPE = re.compile(r"[a-z][a-z0-9_]{0,99}(?:\.[a-z0-9_]{1,99}){0,9}")
_MEMBERS = frozenset({"type", "input", "not_before", "deadline", "ordering_key"})
_REQUIRED = ("type", "input")
_RFC3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?"
    r"(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_ORDERING_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True, slots=True)
class Options:
    """When and behind what an operation may run; times are aware datetimes.

    Part of the fingerprint. `None` means that the request did not have the member.
    """

    not_before: datetime | None = None
    deadline: datetime | None = None
    ordering_key: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """What a caller asks for, as it is compared and stored."""

    type: str
    input: dict[str, JsonValue]
    options: Options = field(default_factory=Options)


def parse_request(body: bytes, pipeline: Pipeline, *, max_bytes: int = MAX_BODY_BYTES) -> Request:
    """Read and check a request's body.

    Checks the JSON, the names and kinds of the members, and that the pipeline has the type; what `input` must
    hold is the type's own affair, and whether a deadline has passed is the database's. Raises
    InvalidRequestError with the slug body-too-large, invalid-json, invalid-request or unknown-type, and a
    pointer.
    """
    members = _members(body, max_bytes)
    type_ = check_type(_text(members, "type"))
    given = members["input"]
    if not isinstance(given, dict):
        raise _invalid("input must be an object", "/input")
    options = Options(_time(members, "not_before"), _time(members, "deadline"), _ordering_key(members))
    if options.not_before and options.deadline and options.deadline <= options.not_before:
        raise _invalid("deadline must be later than not_before", "/deadline")
    if type_ not in pipeline.operations:
        raise InvalidRequestError("unknown-type", "there is no operation of this type", "/type")
    return Request(type_, given, options)


def parse_time(text: str) -> datetime:
    """Read an RFC 3339 time, which has an offset, as UTC; at most microseconds, as no digit may be lost.

    Raises ValueError.
    """
    if not _RFC3339.fullmatch(text):
        raise ValueError("must be an RFC 3339 time with an offset, at most to the microsecond")
    try:
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError("there is no such time") from None


def check_key(header: str) -> str:
    r"""Read the Idempotency-Key header: 1–255 visible ASCII characters (0x21–0x7e).

    The IETF draft makes the header a structured-field string, `"k-1"` with `\"` and `\\` as escapes
    (RFC 9651 §3.3.3); most callers send it bare, `k-1`. Both spell the key `k-1`. A header that starts with a
    quote must be exactly one such string: no parameters, no second value. Raises InvalidRequestError
    (invalid-key).
    """
    text = header.strip(" \t")
    if text.startswith('"'):
        match = _QUOTED.fullmatch(text)
        text = re.sub(r"\\(.)", r"\1", match[1]) if match else ""
    if not _KEY.fullmatch(text):
        raise InvalidRequestError("invalid-key", "Idempotency-Key must be 1 to 255 visible ASCII characters")
    return text


def check_tenant(tenant: str) -> str:
    """Return the tenant when it is 1–63 of a–z, 0–9, `-`, `_`, the first a letter or digit.

    Raises InvalidRequestError (invalid-tenant).
    """
    if not _TENANT.fullmatch(tenant):
        raise InvalidRequestError(
            "invalid-tenant",
            "a tenant is 1 to 63 characters of a-z, 0-9, - and _, and starts with a-z or 0-9",
        )
    return tenant


def check_type(type: str) -> str:  # noqa: A002 - DESIGN's word
    """Return the operation type when it is spelled like one (`invoice.generate`).

    Raises InvalidRequestError (invalid-request). Whether the pipeline has it is for `parse_request` to say.
    """
    if not _TYPE.fullmatch(type):
        raise InvalidRequestError("invalid-request", "a type looks like invoice.generate", "/type")
    return type


def _members(body: bytes, max_bytes: int) -> Mapping[str, JsonValue]:
    try:
        members = ijson.parse(body, max_bytes=max_bytes)
    except JsonTooLargeError as error:
        raise InvalidRequestError("body-too-large", error.detail) from None
    except InvalidJsonError as error:
        raise InvalidRequestError("invalid-json", error.detail, error.pointer) from None
    if not isinstance(members, dict):
        raise _invalid("the body must be an object", "")
    for name in members:
        if name not in _MEMBERS:
            raise _invalid("unknown member", ijson.pointer("", name))
    for name in _REQUIRED:
        if name not in members:
            raise _invalid("is missing", ijson.pointer("", name))
    return members


def _text(members: Mapping[str, JsonValue], name: str) -> str:
    value = members[name]
    if not isinstance(value, str):
        raise _invalid("must be a string", ijson.pointer("", name))
    return value


def _time(members: Mapping[str, JsonValue], name: str) -> datetime | None:
    """Read an optional time; null is refused, because a member that is left out means something else."""
    if name not in members:
        return None
    try:
        return parse_time(_text(members, name))
    except ValueError as error:
        raise _invalid(str(error), ijson.pointer("", name)) from None


def _ordering_key(members: Mapping[str, JsonValue]) -> str | None:
    if "ordering_key" not in members:
        return None
    key = _text(members, "ordering_key")
    if not _ORDERING_KEY.fullmatch(key):
        raise _invalid("must be 1 to 255 visible ASCII characters", "/ordering_key")
    return key


def _invalid(detail: str, pointer: str) -> InvalidRequestError:
    return InvalidRequestError("invalid-request", detail, pointer)
