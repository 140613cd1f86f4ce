"""Which operation a request means: its key, its fingerprint, and what makes two requests differ.

Identity is `(tenant, type, key)`; the fingerprint says whether a repeated key repeats the same request.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import MappingProxyType

from shared import ijson
from shared.errors import EchoproofError
from shared.ijson import JsonValue
from shared.request import Options, Request, check_key, check_tenant, check_type, parse_request

__all__ = [
    "FINGERPRINT_VERSION",
    "Options",
    "Request",
    "check_key",
    "check_tenant",
    "check_type",
    "differing_fields",
    "fingerprint",
    "parse_request",
    "rfc3339",
]

FINGERPRINT_VERSION = 1
MAX_FIELDS_TOLD = 20  # enough to find the mistake, and bounded for a hostile body


class FingerprintVersionError(EchoproofError):
    """No rule of this version computes fingerprints."""


def fingerprint(request: Request, version: int = FINGERPRINT_VERSION, canonical_input: bytes | None = None) -> bytes:
    """Return the SHA-256 (32 bytes) that is the same for the same request.

    `canonical_input` is `ijson.canonical(request.input)` where the caller has it already.

    Compare a later request under the version that was stored with the first: every version ever stored stays
    computable. Raises FingerprintVersionError for one that was not, InvalidJsonError for an input that is not
    I-JSON.
    """
    rule = FINGERPRINT_RULES.get(version)
    if rule is None:
        raise FingerprintVersionError(f"no rule of version {version} computes fingerprints")
    return rule(request, ijson.canonical(request.input) if canonical_input is None else canonical_input)


def _fingerprint_1(request: Request, canonical_input: bytes) -> bytes:
    """Version 1: RFC 8785 of type, input and the options that are present, times in UTC with microseconds."""
    # The canonical form of an object is its members' canonical forms in the order of their names.
    options, type_ = ijson.canonical(_present(request.options)), ijson.canonical(request.type)
    document = b'{"input":%b,"options":%b,"type":%b}' % (canonical_input, options, type_)
    return hashlib.sha256(document).digest()


# Versions that were stored with an operation. Never change or remove one; add the next.
FINGERPRINT_RULES: Mapping[int, Callable[[Request, bytes], bytes]] = MappingProxyType({1: _fingerprint_1})


def differing_fields(recorded: Request, received: Request) -> list[str]:
    """Name the top-level fields in which two requests differ, as JSON pointers, never with values.

    Sorted: `/deadline`, `/input/lines`, `/type`; at most MAX_FIELDS_TOLD of them. Members are compared by
    their canonical form, so `1` and `1.0` are the same, `null` and an absent member are not.
    """
    ours, theirs = dict(_fields(recorded)), dict(_fields(received))
    paths = [path for path in ours.keys() | theirs.keys() if ours.get(path) != theirs.get(path)]
    return [functools.reduce(ijson.pointer, path, "") for path in sorted(paths)[:MAX_FIELDS_TOLD]]


def rfc3339(moment: datetime) -> str:
    """Write an aware datetime in UTC with microseconds: `2026-01-31T08:00:00.000000Z`."""
    if moment.utcoffset() is None:
        raise ValueError("a time without an offset")
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def _present(options: Options) -> dict[str, JsonValue]:
    values: dict[str, JsonValue] = {}
    if options.not_before is not None:
        values["not_before"] = rfc3339(options.not_before)
    if options.deadline is not None:
        values["deadline"] = rfc3339(options.deadline)
    if options.ordering_key is not None:
        values["ordering_key"] = options.ordering_key
    return values


def _fields(request: Request) -> Iterator[tuple[tuple[str, ...], bytes]]:
    """Give each top-level field's path with its canonical form."""
    yield ("type",), ijson.canonical(request.type)
    for name, value in _present(request.options).items():
        yield (name,), ijson.canonical(value)
    for name, value in request.input.items():
        yield ("input", name), ijson.canonical(value)
