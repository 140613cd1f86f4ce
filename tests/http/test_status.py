"""Status, long poll, lists and cancel over HTTP."""

from __future__ import annotations

import itertools
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from shared import steps
from tests.database.kit import Kit
from tests.http.service import APP, OPERATIONS, OTHER, Answer, Service

_keys = itertools.count()


def submit(service: Service, operation_type: str = "test.single", tenant: str = "shop", **options: Any) -> str:
    """Ask for an operation and return its path."""
    body = {"type": operation_type, "input": {"n": 1}, **options}
    answer = service.post(body, f"status-{next(_keys)}", tenant=tenant, caller=OTHER if tenant == "rival" else APP)
    assert answer.status == 202
    return answer.headers["Location"]


def identifier(path: str) -> UUID:
    return UUID(path.rpartition("/")[2])


def claim(kit: Kit, path: str) -> steps.Claim:
    return kit.claimed(kit.dispatches(identifier(path))[0])


def finish(kit: Kit, held: steps.Claim) -> None:
    with kit.database.transaction() as transaction:
        steps.succeed(transaction, held, {"number": 7})


def polled(
    service: Service, kit: Kit, target: str, *headers: tuple[str, str]
) -> tuple[ThreadPoolExecutor, Future[Answer]]:
    """Start a long poll and return once it has looked at least once."""
    pool = ThreadPoolExecutor(1)
    answer = pool.submit(service.get, target, list(headers))
    time.sleep(0.5)
    assert not answer.done()
    return pool, answer


def test_a_new_operation_is_told_whole(service: Service) -> None:
    path = submit(service, "test.line", not_before="2030-01-01T00:00:00Z", deadline="2030-01-02T02:00:00+02:00")
    told = service.get(path)
    assert told.headers["Retry-After"] == "2"
    assert (told.json["state"], told.json["type"], told.json["tenant"]) == ("requested", "test.line", "shop")
    assert (told.json["not_before"], told.json["deadline"]) == (
        "2030-01-01T00:00:00+00:00",
        "2030-01-02T00:00:00+00:00",
    )
    assert [(step["step"], step["state"], step["needs"]) for step in told.json["steps"]] == [
        ("first", "queued", []),
        ("second", "waiting", ["first"]),
    ]
    assert "input" not in told.json


def test_an_answer_that_is_known_is_not_sent_again(service: Service, kit: Kit) -> None:
    path = submit(service)
    etag = service.get(path).headers["ETag"]
    for known in (etag, f"W/{etag}", f'"other", {etag}', "*"):
        answer = service.get(path, [("If-None-Match", known)])
        assert (answer.status, answer.body, answer.headers["ETag"]) == (304, b"", etag)
    for unknown in ('"other"', etag.strip('"')[:-1], ""):
        assert service.get(path, [("If-None-Match", unknown)]).status == 200
    claim(kit, path)
    changed = service.get(path, [("If-None-Match", etag)])
    assert (changed.status, changed.json["state"]) == (200, "running")
    assert changed.headers["ETag"] != etag


def test_head_is_get_without_a_body(service: Service) -> None:
    path = submit(service)
    answer = service.send("HEAD", path)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["ETag"] == service.get(path).headers["ETag"]


def test_a_poll_ends_when_the_operation_does(service: Service, kit: Kit) -> None:
    path = submit(service)
    held = claim(kit, path)
    began = time.monotonic()
    pool, answer = polled(service, kit, f"{path}?wait=30s")
    finish(kit, held)
    with pool:
        told = answer.result()
    assert time.monotonic() - began < 25
    assert (told.status, told.json["state"]) == (200, "succeeded")
    assert told.json["steps"][0]["result"] == {"number": 7}
    assert "Retry-After" not in told.headers
    assert service.get(f"{path}?wait=30s").json == told.json


def test_a_poll_ends_when_the_known_answer_changes(service: Service, kit: Kit) -> None:
    path = submit(service)
    etag = service.get(path).headers["ETag"]
    pool, answer = polled(service, kit, f"{path}?wait=30s", ("If-None-Match", etag))
    claim(kit, path)
    with pool:
        assert answer.result().json["state"] == "running"


def test_a_poll_of_a_known_answer_at_rest_does_not_wait(service: Service, kit: Kit) -> None:
    path = submit(service)
    finish(kit, claim(kit, path))
    etag = service.get(path).headers["ETag"]
    began = time.monotonic()
    assert service.get(f"{path}?wait=30s", [("If-None-Match", etag)]).status == 304
    assert time.monotonic() - began < 25


def test_a_poll_ends_with_its_time(service: Service) -> None:
    path = submit(service)
    began = time.monotonic()
    told = service.get(f"{path}?wait=1s")
    assert time.monotonic() - began >= 1
    assert (told.json["state"], told.headers["Retry-After"]) == ("requested", "2")
    assert service.get(f"{path}?wait=0s").status == 200


def pages(service: Service, query: str) -> list[list[str]]:
    """Follow the cursors of a list and return the ids of each page."""
    found, cursor = [], ""
    while True:
        page = service.get(f"/v1/tenants/ledger/operations?{query}{cursor}").json
        found.append([each["id"] for each in page["operations"]])
        if "cursor" not in page:
            return found
        cursor = f"&cursor={page['cursor']}"


def test_a_list_comes_newest_first_in_pages_that_new_operations_do_not_shift(service: Service, kit: Kit) -> None:
    assert pages(service, "page_size=3") == [[]]
    paths = [submit(service, ["test.single", "test.twin"][n % 2], "ledger") for n in range(6)]
    newest_first = [str(identifier(path)) for path in reversed(paths)]
    assert pages(service, "page_size=3") == [newest_first[:3], newest_first[3:]]
    assert pages(service, "page_size=4") == [newest_first[:4], newest_first[4:]]
    assert pages(service, "") == [newest_first]
    assert pages(service, "type=test.twin&page_size=2") == [newest_first[0:4:2], [newest_first[4]]]
    assert pages(service, "type=test.none") == [[]]

    first = service.get("/v1/tenants/ledger/operations?page_size=3").json
    submit(service, tenant="ledger")
    second = service.get(f"/v1/tenants/ledger/operations?page_size=3&cursor={first['cursor']}").json
    assert [each["id"] for each in second["operations"]] == newest_first[3:]

    finish(kit, claim(kit, paths[0]))
    claim(kit, paths[1])
    assert pages(service, "state=succeeded") == [[newest_first[5]]]
    assert pages(service, "state=running") == [[newest_first[4]]]
    assert pages(service, "state=failed") == [[]]


def test_a_cancel_stops_what_has_not_started_and_repeating_it_changes_nothing(service: Service, kit: Kit) -> None:
    path = submit(service, "test.line")
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: service.cancel(path), range(6)))
    assert {(a.status, a.json["state"]) for a in answers} == {(200, "cancelled")}
    assert service.cancel(path).json == answers[0].json
    assert set(kit.states(identifier(path)).values()) == {"cancelled"}
    assert kit.dispatches(identifier(path)) == []
    assert "Retry-After" not in service.get(path).headers


def test_a_cancel_asks_what_runs_to_stop(service: Service, kit: Kit) -> None:
    path = submit(service, "test.line")
    held = claim(kit, path)
    first, again = service.cancel(path), service.cancel(path)
    assert (first.status, first.json["state"]) == (200, "running")
    assert first.json["cancel_requested_at"] == again.json["cancel_requested_at"]
    finish(kit, held)
    assert service.get(path).json["state"] == "cancelled"
    assert service.cancel(path).status == 200


@pytest.mark.parametrize("state", ["succeeded", "failed", "needs_review"])
def test_a_cancel_after_the_end_is_a_conflict(service: Service, kit: Kit, state: str) -> None:
    path = submit(service)
    held = claim(kit, path)
    if state == "succeeded":
        finish(kit, held)
    else:
        kit.fail(held, steps.Outcome.FAILED if state == "failed" else steps.Outcome.UNRESOLVED)
    before = service.get(path).json
    answer = service.cancel(path)
    assert (answer.problem, answer.json["state"]) == ("conflict", state)
    assert service.get(path).json == before


def test_case_48_status_and_cancel_across_tenants_are_not_found(service: Service, kit: Kit) -> None:
    path = submit(service)
    for tenant, caller in (("branch", APP), ("rival", OTHER), ("rival", APP), ("shop", OTHER)):
        elsewhere = f"/v1/tenants/{tenant}/operations/{identifier(path)}"
        answers = [service.get(elsewhere, caller=caller), service.cancel(elsewhere, caller=caller)]
        assert {answer.problem for answer in answers} == {"not-found"}
    assert service.get(path).json["state"] == "requested"
    assert service.get(OPERATIONS, caller=OTHER).problem == "not-found"


def test_case_48_the_same_key_in_two_tenants_is_two_operations(service: Service) -> None:
    key = f"status-{next(_keys)}"
    body = {"type": "test.single", "input": {"n": 1}}
    answers = [
        service.post(body, key),
        service.post(body, key, tenant="branch"),
        service.post(body | {"input": {"n": 2}}, key, tenant="rival", caller=OTHER),
    ]
    assert [answer.status for answer in answers] == [202] * 3
    assert len({answer.json["id"] for answer in answers}) == 3


def test_the_callers_trace_goes_with_the_operation(service: Service, kit: Kit) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for sent, kept in ((trace, trace), ("00-0-0-0", None), (f"{trace}-more", None)):
        body = {"type": "test.single", "input": {}}
        answer = service.post(body, f"status-{next(_keys)}", headers=[("traceparent", sent)])
        where = f"WHERE id = '{answer.json['id']}'"
        assert kit.value(f"SELECT traceparent FROM operations {where}") == kept
        assert kit.value(f"SELECT traceparent FROM outbox {where.replace('id', 'operation_id', 1)}") == kept


def test_what_cannot_be_published_at_once_is_given_to_the_relay(service: Service, kit: Kit) -> None:
    path = submit(service)  # the Pub/Sub server here has no topics
    due = f"SELECT publish_after <= now(), published FROM outbox WHERE operation_id = '{identifier(path)}'"
    assert kit.query(due) == [[True, 0]]


def test_an_operation_behind_another_of_its_key_says_so_and_starts_when_that_is_cancelled(service: Service) -> None:
    first, second = submit(service, ordering_key="account-7"), submit(service, ordering_key="account-7")
    assert [step["state"] for step in service.get(first).json["steps"]] == ["queued"]
    told = service.get(second)
    assert (told.json["ordering_key"], told.json["waiting_for"]) == ("account-7", "ordering_key")
    assert told.json["steps"][0]["state"] == "waiting"
    assert service.cancel(first).status == 200
    started = service.get(second)
    assert "waiting_for" not in started.json
    assert started.json["steps"][0]["state"] == "queued"
    assert started.headers["ETag"] != told.headers["ETag"]


def test_a_repeated_request_for_one_that_waits_is_answered_as_ever(service: Service) -> None:
    submit(service, ordering_key="account-8")
    body = {"type": "test.single", "input": {"n": 1}, "ordering_key": "account-8"}
    accepted = service.post(body, "waits-twice")
    again = service.post(body, "waits-twice")
    assert (accepted.status, again.status) == (202, 200)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert (again.json["id"], again.json["waiting_for"]) == (accepted.json["id"], "ordering_key")
    assert service.post(body | {"ordering_key": "account-9"}, "waits-twice").status == 422
