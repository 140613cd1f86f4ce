"""Malformed requests, each with the problem that it gets, and a canary that may come out nowhere."""

from __future__ import annotations

import gzip
from dataclasses import dataclass, field

from shared.request import MAX_BODY_BYTES
from tests.http.service import OPERATIONS

CANARY = "canary5f0c"
JSON = ("Content-Type", "application/json")
KEY = ("Idempotency-Key", f"{CANARY}-key")
NOBODYS = f"{OPERATIONS}/00000000-0000-7000-8000-000000000000"
VALID = b'{"type": "test.single", "input": {"c": "canary5f0c"}}'


@dataclass(frozen=True)
class Bad:
    """A request and the problem that it gets."""

    name: str
    problem: str
    body: bytes | list[bytes] | None = VALID
    headers: list[tuple[str, str | bytes]] = field(default_factory=lambda: [JSON, KEY])
    method: str = "POST"
    target: str = OPERATIONS
    pointer: str | None = None


def given(text: str, *members: str) -> bytes:
    """A body whose input is this text."""
    return f'{{"type": "test.single", "input": {text}{"".join(", " + member for member in members)}}}'.encode()


def number(text: str) -> Bad:
    return Bad(f"the number {text[:30]}", "invalid-json", given(f'{{"c": "{CANARY}", "n": {text}}}'))


BODIES = [
    Bad("an empty body", "invalid-json", b""),
    Bad("blanks", "invalid-json", b" \r\n\t"),
    Bad("no JSON", "invalid-json", CANARY.encode()),
    Bad("a cut body", "invalid-json", VALID[:-1]),
    Bad("trailing garbage", "invalid-json", VALID + b" canary5f0c"),
    Bad("two bodies", "invalid-json", VALID + VALID),
    Bad("a trailing comma", "invalid-json", given(f'{{"c": "{CANARY}",}}')),
    Bad("single quotes", "invalid-json", VALID.replace(b'"', b"'")),
    Bad("a comment", "invalid-json", b"/* canary5f0c */" + VALID),
    Bad("a byte order mark", "invalid-json", b"\xef\xbb\xbf" + VALID),
    Bad("UTF-16", "invalid-json", VALID.decode().encode("utf-16")),
    Bad("UTF-32 without a mark", "invalid-json", VALID.decode().encode("utf-32-be")),
    Bad("Latin-1", "invalid-json", given('{"c": "canary5f0c é"}').decode().encode("latin-1")),
    Bad("an overlong UTF-8 form", "invalid-json", given('{"c": "X"}').replace(b"X", b"\xc0\x80canary5f0c")),
    Bad("a surrogate in UTF-8", "invalid-json", given('{"c": "X"}').replace(b"X", b"\xed\xa0\x80canary5f0c")),
    Bad("a lone high surrogate", "invalid-json", given('{"c": "canary5f0c \\ud83d"}'), pointer="/input/c"),
    Bad("a lone low surrogate in a name", "invalid-json", given('{"\\udc00": 1}')),
    Bad("NUL, escaped", "invalid-json", given('{"c": "canary5f0c \\u0000"}'), pointer="/input/c"),
    Bad("NUL, escaped, in a name", "invalid-json", given('{"\\u0000canary": 1}')),
    Bad("NUL, raw", "invalid-json", given('{"c": "canary5f0c \0"}')),
    Bad("a raw newline in a string", "invalid-json", given('{"c": "canary5f0c\n"}')),
    Bad("a bad escape", "invalid-json", given('{"c": "canary5f0c \\x41"}')),
    Bad("a name twice", "invalid-json", given('{"a": {"c": 1, "c": "canary5f0c"}}'), pointer="/input/a/c"),
    Bad("a name twice, spelled differently", "invalid-json", given('{"c": 1, "\\u0063": "canary5f0c"}')),
    Bad("a member twice", "invalid-json", given("{}", '"input": {"c": "canary5f0c"}')),
    Bad("33 levels", "invalid-json", given('{"a": ' + "[" * 31 + "1" + "]" * 31 + "}")),
    Bad("a million levels", "invalid-json", b"[" * 1_000_000),
    Bad("a million levels of objects", "invalid-json", b'{"a":' * 500_000),
    number("NaN"),
    number("Infinity"),
    number("-Infinity"),
    number("1e400"),
    number("-1e400"),
    number("1e131072"),
    number("9" * 5000),
    number("1e999999999999999999999"),
    number("1234567890123456789"),
    number("9007199254740993"),
    number("0.10000000000000000001"),
    number("01"),
    number("+1"),
    number(".5"),
    number("1."),
    number("0x10"),
    number("1_000"),
    Bad("an array", "invalid-request", b"[" + VALID + b"]"),
    Bad("a string", "invalid-request", b'"canary5f0c"'),
    Bad("null", "invalid-request", b"null"),
    Bad("no type", "invalid-request", b'{"input": {"c": "canary5f0c"}}', pointer="/type"),
    Bad("no input", "invalid-request", b'{"type": "test.single"}', pointer="/input"),
    Bad("a number as type", "invalid-request", b'{"type": 1, "input": {}}', pointer="/type"),
    Bad("a type of another spelling", "invalid-request", b'{"type": "Canary5f0c!", "input": {}}', pointer="/type"),
    Bad("an unknown type", "unknown-type", b'{"type": "canary5f0c", "input": {}}', pointer="/type"),
    Bad("an array as input", "invalid-request", given('["canary5f0c"]'), pointer="/input"),
    Bad("null as input", "invalid-request", given("null"), pointer="/input"),
    Bad("an unknown member", "invalid-request", given("{}", '"priority": "canary5f0c"'), pointer="/priority"),
    Bad("a time without an offset", "invalid-request", given("{}", '"deadline": "2030-01-01T00:00:00"')),
    Bad("a date", "invalid-request", given("{}", '"deadline": "2030-01-01"'), pointer="/deadline"),
    Bad("30 February", "invalid-request", given("{}", '"not_before": "2030-02-30T00:00:00Z"'), pointer="/not_before"),
    Bad("a number as a time", "invalid-request", given("{}", '"deadline": 1893456000'), pointer="/deadline"),
    Bad("null as a time", "invalid-request", given("{}", '"deadline": null'), pointer="/deadline"),
    Bad("nanoseconds", "invalid-request", given("{}", '"deadline": "2030-01-01T00:00:00.123456789Z"')),
    Bad(
        "a deadline before not_before",
        "invalid-request",
        given("{}", '"not_before": "2030-01-02T00:00:00Z"', '"deadline": "2030-01-01T00:00:00Z"'),
        pointer="/deadline",
    ),
    Bad("an ordering key that is empty", "invalid-request", given("{}", '"ordering_key": ""')),
    Bad("one byte too large", "body-too-large", VALID + b" " * (MAX_BODY_BYTES + 1 - len(VALID))),
    Bad("one byte too large, in chunks", "body-too-large", [VALID, b" " * (MAX_BODY_BYTES + 1 - len(VALID))]),
    Bad("9 MB in chunks", "body-too-large", [VALID, *[b" " * 1_000_000] * 9]),
]
HEADERS = [
    Bad("no key", "missing-key", headers=[JSON]),
    Bad("an empty key", "invalid-key", headers=[JSON, ("Idempotency-Key", "")]),
    Bad("a blank key", "invalid-key", headers=[JSON, ("Idempotency-Key", "  ")]),
    Bad("an empty quoted key", "invalid-key", headers=[JSON, ("Idempotency-Key", '""')]),
    Bad("two keys", "invalid-key", headers=[JSON, KEY, KEY]),
    Bad("two quoted keys", "invalid-key", headers=[JSON, *[("Idempotency-Key", f'"{CANARY}"')] * 2]),
    Bad("two keys in one", "invalid-key", headers=[JSON, ("Idempotency-Key", f"{CANARY},b")]),
    Bad("a key of 256", "invalid-key", headers=[JSON, ("Idempotency-Key", CANARY + "k" * 246)]),
    Bad("a key with a blank", "invalid-key", headers=[JSON, ("Idempotency-Key", f"{CANARY} b")]),
    Bad("a key in Latin-1", "invalid-key", headers=[JSON, ("Idempotency-Key", f"{CANARY}é".encode("latin-1"))]),
    Bad("a key in UTF-8", "invalid-key", headers=[JSON, ("Idempotency-Key", f"{CANARY}é".encode())]),
    Bad("a key cut off", "invalid-key", headers=[JSON, ("Idempotency-Key", f'"{CANARY}')]),
    Bad("no media type", "unsupported-media-type", headers=[KEY]),
    Bad("text", "unsupported-media-type", headers=[KEY, ("Content-Type", "text/plain")]),
    Bad("a form", "unsupported-media-type", headers=[KEY, ("Content-Type", "application/x-www-form-urlencoded")]),
    Bad(
        "multipart",
        "unsupported-media-type",
        headers=[KEY, ("Content-Type", f"multipart/form-data; boundary={CANARY}")],
    ),
    Bad("a media type of JSON's kin", "unsupported-media-type", headers=[KEY, ("Content-Type", "application/json5")]),
    Bad(
        "gzip",
        "unsupported-media-type",
        gzip.compress(VALID),
        headers=[JSON, KEY, ("Content-Encoding", "gzip")],
    ),
    Bad("gzip that nobody told of", "invalid-json", gzip.compress(VALID)),
    Bad("an upgrade", "invalid-request", headers=[JSON, KEY, ("Connection", "Upgrade"), ("Upgrade", "websocket")]),
]
TARGETS = [
    Bad("PUT", "method-not-allowed", method="PUT"),
    Bad("DELETE of an operation", "method-not-allowed", method="DELETE", target=NOBODYS),
    Bad("OPTIONS", "method-not-allowed", method="OPTIONS"),
    Bad("TRACE", "method-not-allowed", method="TRACE"),
    Bad("a method of nobody's", "method-not-allowed", method="CANARY5F0C"),
    Bad("POST to an operation", "method-not-allowed", target=NOBODYS),
    Bad("GET of cancel", "method-not-allowed", None, [], "GET", f"{NOBODYS}:cancel"),
    Bad("the root", "not-found", target="/"),
    Bad("an unknown path", "not-found", target=f"/v1/{CANARY}"),
    Bad("a version of nobody's", "not-found", target="/v2/tenants/shop/operations"),
    Bad("the framework's own path", "not-found", target="/robots.txt"),
    Bad("a trailing slash", "not-found", target=f"{OPERATIONS}/"),
    Bad("doubled slashes", "not-found", target="/v1//tenants/shop/operations"),
    Bad("a slash before", "not-found", target="//v1/tenants/shop/operations"),
    Bad("traversal", "not-found", target=f"/v1/tenants/{CANARY}/../shop/operations"),
    Bad("encoded traversal", "invalid-tenant", target="/v1/tenants/%2e%2e/operations"),
    Bad("an encoded slash", "not-found", target="/v1/tenants/shop%2Foperations"),
    Bad("an encoded slash before the path", "not-found", target="/%2fv1/tenants/shop/operations"),
    Bad("a doubly encoded slash", "invalid-tenant", target="/v1/tenants/shop%252Fx/operations"),
    Bad("a tenant in capitals", "invalid-tenant", target="/v1/tenants/CANARY5F0C/operations"),
    Bad("NUL in the tenant", "invalid-tenant", target="/v1/tenants/shop%00/operations"),
    Bad("a newline in the tenant", "not-found", target="/v1/tenants/shop%0acanary5f0c/operations"),
    Bad("not UTF-8 in the tenant", "invalid-tenant", target="/v1/tenants/%ff/operations"),
    Bad("a tenant of 64", "invalid-tenant", target=f"/v1/tenants/{'a' * 64}/operations"),
    Bad("another's tenant", "not-found", target="/v1/tenants/rival/operations"),
    Bad("a query where none is known", "invalid-query", target=f"{OPERATIONS}?dry_run=canary5f0c"),
    *[
        Bad(f"the query {query}", "invalid-query", None, [], "GET", f"{OPERATIONS}?{query}")
        for query in (
            "state=canary5f0c",
            "state=",
            "type=Canary5f0c",
            "type=%00",
            "cursor=canary5f0c",
            "cursor=",
            "cursor=00000000-0000-7000-8000-00000000000g",
            "page_size=0",
            "page_size=501",
            "page_size=-1",
            "page_size=canary5f0c",
            "page_size=1e2",
            "page_size=%D9%A1",
            "page_size=1&page_size=2",
            "limit=canary5f0c",
        )
    ],
    *[
        Bad(f"the query {query}", "invalid-query", None, [], "GET", f"{NOBODYS}?{query}")
        for query in ("wait=canary5f0c", "wait=20", "wait=31s", "wait=-1s", "wait=1.5s", "wait=99999s", "wait=")
    ],
    *[
        Bad(f"the id {identifier[:20]}", "not-found", None, [], "GET", f"{OPERATIONS}/{identifier}")
        for identifier in (
            "canary5f0c",
            "1",
            "00000000-0000-7000-8000-000000000000x",
            "%00",
            "a" * 5000,
            "..",
            "'; DROP TABLE operations; --".replace(" ", "%20"),
            "{00000000-0000-7000-8000-000000000000}",
        )
    ],
    Bad("cancel of no id", "not-found", target=f"{OPERATIONS}/canary5f0c:cancel"),
    Bad("another custom method", "not-found", target=f"{NOBODYS}:canary5f0c"),
]


def posted(*headers: bytes, body: bytes = VALID) -> bytes:
    """A request as bytes."""
    lines = [
        b"POST /v1/tenants/shop/operations HTTP/1.1",
        b"Host: intake.example",
        b"{token}",
        b"Content-Type: application/json",
        b"Idempotency-Key: canary5f0c-raw",
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


CHUNKED = b"Transfer-Encoding: chunked"
LENGTH = b"Content-Length: %d"
OURS = [  # what reaches the function
    ("a body shorter than its length", posted(LENGTH % (len(VALID) + 9)), b"invalid-request"),
    ("a body cut within its length", posted(LENGTH % len(VALID), body=VALID[:20]), b"invalid-request"),
    ("a body longer than its length", posted(LENGTH % (len(VALID) - 1), b"Connection: close"), b"invalid-json"),
    ("no length", posted(b"Connection: close"), b"invalid-json"),
    ("a bad chunk size", posted(CHUNKED, body=b"zz\r\n" + VALID), b"invalid-request"),
    ("chunks that end early", posted(CHUNKED, body=b"%x\r\n" % len(VALID) + VALID + b"\r\n"), b"invalid-request"),
    ("a chunk without its end", posted(CHUNKED, body=b"5\r\n" + VALID), b"invalid-request"),
    ("a declared gigabyte", posted(b"Content-Length: 1000000000"), b"body-too-large"),
]
THE_SERVERS = [  # what is not HTTP: the server in front of the function refuses it
    ("two lengths", posted(b"Content-Length: 5", b"Content-Length: 6")),
    (
        "a length and chunks",
        posted(LENGTH % len(VALID), CHUNKED, body=b"%x\r\n" % len(VALID) + VALID + b"\r\n0\r\n\r\n"),
    ),
    ("a length that is no number", posted(b"Content-Length: canary5f0c")),
    ("a negative length", posted(b"Content-Length: -1")),
    ("another transfer coding", posted(b"Transfer-Encoding: gzip, canary5f0c")),
    ("a folded header", posted(b"X-Folded: a\r\n canary5f0c")),
    ("a header without a colon", posted(b"canary5f0c")),
    ("NUL in a header", posted(b"X-Nul: a\0b")),
    ("a name with a blank", posted(b"Content-Length : 5")),
    ("no HTTP", b"canary5f0c\r\n\r\n"),
    ("another version", b"POST /v1/tenants/shop/operations HTTP/9.9\r\n\r\n"),
]
