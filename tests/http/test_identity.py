"""Identity, over HTTP: one identity is one operation, whatever happens to the requests for it."""

from __future__ import annotations

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import pytest

from shared import steps
from tests.database.kit import Kit
from tests.database.rival import Rival, wait_until_blocked
from tests.http.service import Answer, Service

_keys = itertools.count()


@pytest.fixture
def key() -> str:
    """A key of this test's own, which is in no other statement."""
    return f"identity-{next(_keys)}-key"


def body(**given: Any) -> dict[str, Any]:
    return {"type": "test.single", "input": given}


def written(text: str) -> bytes:
    """A body whose input is this text."""
    return f'{{"type": "test.single", "input": {text}}}'.encode()


def counted(kit: Kit, key: str) -> list[int]:
    """How many identities, operations, steps and outbox rows a key has."""
    of = f"operation_id IN (SELECT operation_id FROM identities WHERE key = '{key}')"
    return [
        kit.value(f"SELECT count(*) FROM identities WHERE key = '{key}'"),
        kit.value(f"SELECT count(*) FROM operations WHERE key = '{key}'"),
        kit.value(f"SELECT count(*) FROM steps WHERE {of}"),
        kit.value(f"SELECT count(*) FROM outbox WHERE {of}"),
    ]


def refused(answer: Answer) -> list[str]:
    assert answer.problem == "key-reused"
    return list(answer.json["fields"])


def test_case_1_the_other_transaction_rolls_back_and_the_waiting_request_creates(
    service: Service, kit: Kit, key: str
) -> None:
    rival = Rival(kit, key, {"n": 1})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(service.post, body(n=1), key)
        wait_until_blocked(kit)
        rival.rollback()
    assert answer.result().status == 202
    assert answer.result().json["id"] != str(rival.operation_id)
    assert counted(kit, key) == [1, 1, 1, 1]


def test_case_1_a_transaction_that_does_not_end_gives_503_and_no_row(service: Service, kit: Kit, key: str) -> None:
    rival = Rival(kit, key, {"n": 1})
    answer = service.post(body(n=1), key)
    assert answer.problem == "unavailable"
    rival.rollback()
    assert counted(kit, key) == [0, 0, 0, 0]
    assert service.post(body(n=1), key).status == 202


def test_case_8_the_winner_commits_in_mid_statement_and_the_losers_return_its_operation(
    service: Service, kit: Kit, key: str
) -> None:
    rival = Rival(kit, key, {"n": 1})
    with ThreadPoolExecutor(4) as pool:
        same = [pool.submit(service.post, body(n=1), key) for _ in range(3)]
        other = pool.submit(service.post, body(n=2), key)
        wait_until_blocked(kit, 4)
        rival.commit()
    assert {(a.result().status, a.result().json["id"]) for a in same} == {(200, str(rival.operation_id))}
    assert refused(other.result()) == ["/input/n"]
    assert counted(kit, key) == [1, 1, 1, 1]


def test_case_2_fifty_parallel_requests_are_one_operation(service: Service, kit: Kit, key: str) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda _: service.post(body(n=1), key), range(50)))
    assert sorted(answer.status for answer in answers) == [200] * 49 + [202]
    assert len({answer.json["id"] for answer in answers}) == 1
    assert counted(kit, key) == [1, 1, 1, 1]


@pytest.mark.parametrize("changed", ['{"n": "1"}', '{"n": [1]}', '{"n": true}', '{"n": null}', '{"m": 1}', "{}"])
def test_case_3_a4_another_body_is_refused_and_the_original_recovers_after_a_kill(
    service: Service, kit: Kit, key: str, changed: str
) -> None:
    first = service.post(body(n=1), key)
    before = kit.query(f"SELECT o::text FROM operations o WHERE key = '{key}'")
    assert refused(service.post(written(changed), key))
    assert kit.query(f"SELECT o::text FROM operations o WHERE key = '{key}'") == before
    if changed == '{"n": "1"}':
        service.restart()
    again = service.post(body(n=1), key)
    assert (again.status, again.json["id"]) == (200, first.json["id"])
    held = kit.claimed(kit.dispatches(UUID(first.json["id"]))[0])
    with kit.database.transaction() as transaction:
        steps.succeed(transaction, held, {"n": 1})
    assert refused(service.post(written(changed), key))
    assert service.post(body(n=1), key).json["state"] == "succeeded"


def test_case_4_the_same_key_of_another_operation_type_is_another_identity(
    service: Service, kit: Kit, key: str
) -> None:
    single, twin = (service.post({"type": name, "input": {"n": 1}}, key) for name in ("test.single", "test.twin"))
    assert (single.status, twin.status) == (202, 202)
    assert single.json["id"] != twin.json["id"]
    assert counted(kit, key) == [2, 2, 2, 2]


@pytest.mark.parametrize(
    "number", ["1", "1.0", "-0.0", "1e20", "1e-7", "2.561422288066971e+16", "0.1", "5e-324", "1e21", "123456789012"]
)
def test_case_5_a_number_resubmitted_after_the_database_is_a_duplicate(
    service: Service, kit: Kit, key: str, number: str
) -> None:
    first = service.post(written(f'{{"n": {number}}}'), key)
    assert first.status == 202
    stored = kit.value(f"SELECT input::text FROM operations WHERE key = '{key}'")
    through_jsonb = kit.value(f"SELECT CAST(input AS jsonb)::text FROM operations WHERE key = '{key}'")
    for text in (stored, through_jsonb, f'{{"n": {number}}}', json.dumps(json.loads(stored))):
        again = service.post(written(text), key)
        assert (again.status, again.json["id"]) == (200, first.json["id"])


def test_case_5_one_and_one_point_nought_are_the_same_number(service: Service, key: str) -> None:
    assert service.post(written('{"n": 1}'), key).status == 202
    for text in ("1.0", "1e0", "10e-1", "1.00"):
        assert service.post(written(f'{{"n": {text}}}'), key).status == 200


@pytest.mark.parametrize(
    ("kept", "other"),
    [
        ('"1234567890123456789"', "1234567890123456788"),
        ("0.1", "0.10000000000000000001"),
        ("0.3", "0.30000000000000004"),
    ],
)
def test_case_6_numbers_that_a_double_cannot_tell_apart_are_never_merged(
    service: Service, kit: Kit, key: str, kept: str, other: str
) -> None:
    assert service.post(written(f'{{"n": {kept}}}'), key).status == 202
    answer = service.post(written(f'{{"n": {other}}}'), key)
    assert answer.problem in ("invalid-json", "key-reused")
    assert kit.value(f"SELECT input::text FROM operations WHERE key = '{key}'") == f'{{"n":{kept}}}'


def test_case_7_permuted_members_are_a_duplicate(service: Service, key: str) -> None:
    assert service.post(written('{"a": {"x": 1, "y": {"p": [1, 2], "q": null}}, "b": 2}'), key).status == 202
    permuted = b'{"input": {"b": 2, "a": {"y": {"q": null, "p": [1, 2]}, "x": 1}}, "type": "test.single"}'
    assert service.post(permuted, key).status == 200


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a": 1}', '{"a": 1, "b": 2}'),
        ('{"a": {"x": 1}}', '{"a": {"x": 1, "y": 1}}'),
        ('{"a": null}', "{}"),
        ('{"a": [1, 2]}', '{"a": [2, 1]}'),
        ('{"a": "1"}', '{"a": 1}'),
        ('{"a": "é"}', '{"a": "e\u0301"}'),
    ],
)
def test_case_7_a_different_body_is_refused_in_both_orders(
    service: Service, key: str, one: str, other: str, swapped: bool
) -> None:
    first, second = (other, one) if swapped else (one, other)
    assert service.post(written(first), key).status == 202
    assert refused(service.post(written(second), key))
    assert service.post(written(first), key).status == 200


def test_options_belong_to_the_request(service: Service, key: str) -> None:
    timed = {**body(n=1), "not_before": "2030-01-01T00:00:00Z", "deadline": "2030-01-02T00:00:00+02:00"}
    assert service.post(timed, key).status == 202
    assert service.post({**timed, "not_before": "2030-01-01T01:00:00.000+01:00"}, key).status == 200
    assert refused(service.post({**timed, "deadline": "2030-01-02T00:00:00Z"}, key)) == ["/deadline"]
    assert refused(service.post(body(n=1), key)) == ["/deadline", "/not_before"]


def test_a_key_bare_and_quoted_is_the_same_key(service: Service, key: str) -> None:
    assert service.post(body(n=1), key).status == 202
    assert service.post(body(n=1), f'"{key}"').status == 200
    assert service.post(body(n=1), f'"{key},1"').status == 202


def test_an_identity_outlives_its_operation(service: Service, kit: Kit, key: str) -> None:
    first = service.post(body(n=1), key)
    kit.query(f"DELETE FROM outbox WHERE operation_id = '{first.json['id']}'")
    kit.query(f"DELETE FROM operations WHERE id = '{first.json['id']}'")
    again = service.post(body(n=1), key)
    assert (again.status, again.json["state"], again.json["id"]) == (200, "pruned", first.json["id"])
    assert refused(service.post(body(n=2), key)) == []
    assert service.get(first.headers["Location"]).status == 404
    assert counted(kit, key) == [1, 0, 0, 0]
