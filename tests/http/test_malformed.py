"""Must show 8: what is not a request of the API is refused with a stable problem, and leaves nothing behind.

Each request carries a canary, where it can: neither the answer nor the log may hold it, and no table a row.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from shared.operations import CANONICAL_GROWTH
from shared.request import MAX_BODY_BYTES
from tests.database.kit import Kit
from tests.http.malformed import (
    BODIES,
    CANARY,
    HEADERS,
    JSON,
    KEY,
    LENGTH,
    NOBODYS,
    OURS,
    TARGETS,
    THE_SERVERS,
    VALID,
    Bad,
    given,
    posted,
)
from tests.http.service import OPERATIONS, OTHER, Answer, Service

TABLES = ("identities", "operations", "steps", "outbox", "attempts", "dead_letters")


@pytest.fixture
def nothing_left(service: Service, kit: Kit) -> Iterator[None]:
    """No row may appear in any table, and no canary in the log."""
    log, before = service.log(), rows(kit)
    yield
    assert rows(kit) == before
    logged = service.log()[len(log) :].lower()
    assert CANARY not in logged
    assert "traceback" not in logged


def rows(kit: Kit) -> list[int]:
    return [kit.value(f"SELECT count(*) FROM {table}") for table in TABLES]


def check(answer: Answer, problem: str) -> None:
    assert answer.problem == problem, answer.body
    text = (answer.body.decode() + repr(answer.headers)).lower()
    assert CANARY not in text
    assert "traceback" not in text
    assert ".py" not in text


@pytest.mark.parametrize("bad", [*BODIES, *HEADERS, *TARGETS], ids=lambda bad: bad.name)
def test_case_9_10_12_a_malformed_request_is_a_problem_and_writes_nothing(
    service: Service, nothing_left: None, bad: Bad
) -> None:
    answer = service.send(bad.method, bad.target, bad.body, bad.headers)
    check(answer, bad.problem)
    if bad.pointer is not None:
        assert answer.json["pointer"] == bad.pointer


def peak_memory(service: Service, *, reset: bool) -> int:
    """The largest resident set of the serving process since the last reset, in bytes (Linux, proc(5))."""
    assert service.part.pid is not None
    (worker,) = psutil.Process(service.part.pid).children()
    if reset:
        Path(f"/proc/{worker.pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{worker.pid}/status").read_text()
    return 1024 * int(re.findall(r"VmHWM:\s+([0-9]+) kB", status)[0])


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process's memory is read from Linux's /proc")
@pytest.mark.parametrize("headers", [[JSON], [JSON, KEY]], ids=["refused by its headers", "refused by its size"])
def test_a_body_that_nobody_wants_is_not_held_in_memory(
    service: Service, nothing_left: None, headers: list[tuple[str, str | bytes]]
) -> None:
    size = 30_000_000
    service.send("POST", OPERATIONS, b" ", headers)  # what the first request imports counts for nothing
    before = peak_memory(service, reset=True)
    for body in (b" " * size, [b" " * 1_000_000] * 30):
        assert service.send("POST", OPERATIONS, body, headers).status in (400, 413)
    assert peak_memory(service, reset=False) - before < size / 2


def test_method_not_allowed_says_what_is(service: Service) -> None:
    assert service.send("PUT", OPERATIONS).headers["Allow"] == "GET, HEAD, POST"
    assert service.get(f"{NOBODYS}:cancel").headers["Allow"] == "POST"


def test_another_callers_operation_is_not_found(service: Service, nothing_left: None) -> None:
    check(service.get(NOBODYS, caller=OTHER), "not-found")


@pytest.mark.parametrize(("data", "problem"), [case[1:] for case in OURS], ids=[case[0] for case in OURS])
def test_a_broken_body_is_a_problem(service: Service, nothing_left: None, data: bytes, problem: bytes) -> None:
    head, _, body = service.raw(data).partition(b"\r\n\r\n")
    assert b"application/problem+json" in head
    assert json.loads(body.splitlines()[0])["type"].encode() == b"urn:echoproof:problem:" + problem
    assert CANARY.encode() not in head + body


@pytest.mark.parametrize("data", [case[1] for case in THE_SERVERS], ids=[case[0] for case in THE_SERVERS])
def test_what_is_not_http_is_refused_before_the_function(service: Service, nothing_left: None, data: bytes) -> None:
    answer = service.raw(data)
    assert answer == b"" or answer.split()[1][:1] in (b"4", b"5"), answer
    assert b"Traceback" not in answer


def test_pipelined_requests_get_no_other_requests_answer(service: Service, nothing_left: None) -> None:
    missing = b"GET /v1/tenants/shop/operations/x HTTP/1.1\r\nHost: h\r\n{token}\r\n%s\r\n"
    bad = posted(LENGTH % 2, body=b"[]")
    answer = service.raw(missing % b"" + bad + missing % b"Connection: close\r\n", half_close=False)
    statuses = [line.split()[1] for line in answer.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]
    # A server may close after any answer (RFC 9112, 9.3.2), and the caller then sends the rest again.
    assert statuses
    assert statuses == [b"404", b"400", b"404"][: len(statuses)]


def test_a_refused_body_does_not_become_the_next_request(service: Service, nothing_left: None) -> None:
    smuggled = posted(LENGTH % len(VALID)).replace(b"{token}", b"X-No: token")
    outer = posted(LENGTH % len(smuggled), b"Connection: close", body=smuggled).replace(b"canary5f0c-raw", b"a b", 1)
    answer = service.raw(outer)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.split()[1] == b"400"


def test_case_9_a_literal_backslash_u_text_survives(service: Service, kit: Kit) -> None:
    body = given('{"text": "\\\\u0000 \\\\ud800"}')
    location = service.post(body, "literal").headers["Location"]
    stored = kit.value(f"SELECT input::text FROM operations WHERE id = '{location.rpartition('/')[2]}'")
    assert json.loads(stored) == {"text": "\\u0000 \\ud800"}
    assert service.post(body, "literal").status == 200


def test_case_12_the_largest_body_is_accepted_and_its_message_carries_ids_only(service: Service, kit: Kit) -> None:
    body = VALID + b" " * (MAX_BODY_BYTES - len(VALID))
    assert service.post(body, "largest").status == 202
    filled = given(json.dumps({"text": "x" * (MAX_BODY_BYTES - 60)}))
    assert len(filled) <= MAX_BODY_BYTES
    answer = service.post(filled, "filled")
    assert answer.status == 202
    assert service.post(filled, "filled").headers["Idempotent-Replayed"] == "true"
    row = kit.query(f"SELECT x::text FROM outbox x WHERE operation_id = '{answer.json['id']}'")[0][0]
    assert len(row) < 500


def test_an_input_whose_canonical_form_is_larger_is_still_compared(service: Service, kit: Kit) -> None:
    grown = given('{"n": [' + ",".join(["1e20"] * 1000) + "]}")
    stored = service.post(grown, "grown").json["id"]
    ratio = kit.value(f"SELECT length(input::text) FROM operations WHERE id = '{stored}'") / len(grown)
    assert ratio < CANONICAL_GROWTH
    # As if the body had been as large as a body may be; that many numbers would take half a minute here.
    longest = int(ratio * MAX_BODY_BYTES)
    kit.query(f"UPDATE operations SET input = json_build_object('n', repeat('x', {longest})) WHERE id = '{stored}'")
    refused = service.post(given('{"n": []}'), "grown")
    assert (refused.problem, refused.json["fields"]) == ("key-reused", ["/input/n"])
