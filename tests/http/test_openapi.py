"""openapi.yaml: valid, complete, and every status that it documents is one that the function gives."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from openapi_spec_validator import validate

from shared import steps
from shared.intake import ROUTES
from shared.problems import PROBLEMS
from tests.database.kit import Kit
from tests.http.contract import Contract
from tests.http.service import APP, OPERATIONS, ROOT, STRANGER, Answer, Service

NOBODYS = f"{OPERATIONS}/00000000-0000-7000-8000-000000000000"
BODY = {"type": "test.single", "input": {"n": 1}}
_numbers = itertools.count()
ELSEWHERE = {"precondition-failed", "too-many-requests"}  # problems of other functions, or of what stands before ours


@contextmanager
def broken_schema(kit: Kit) -> Iterator[None]:
    """A fault of ours: a table is not there."""
    for name in ("operations", "identities"):
        kit.query(f"ALTER TABLE {name} RENAME TO {name}_away")
    try:
        yield
    finally:
        for name in ("operations", "identities"):
            kit.query(f"ALTER TABLE {name}_away RENAME TO {name}")


@contextmanager
def database_away(service: Service) -> Iterator[None]:
    service.proxy.refuse(refusing=True)
    try:
        yield
    finally:
        service.proxy.refuse(refusing=False)


def succeeded(service: Service, kit: Kit) -> str:
    """The path of an operation that has succeeded."""
    path = service.post(BODY, f"openapi-{next(_numbers)}").headers["Location"]
    finish(kit, path)
    return path


def finish(kit: Kit, path: str) -> None:
    held = kit.claimed(kit.dispatches(UUID(path.rpartition("/")[2]))[0])
    with kit.database.transaction() as transaction:
        steps.succeed(transaction, held, {"done": True})


def test_the_document_is_valid_openapi() -> None:
    validate(Contract().document)


def test_every_route_and_method_is_described_and_nothing_else() -> None:
    routes = {
        (rule.rule.replace("<tenant>", "{tenant}").replace("<name:operation_id>", "{id}"), method.lower())
        for rule in ROUTES.iter_rules()
        for method in (rule.methods or set()) - {"HEAD"}
    }
    paths = Contract().document["paths"]
    assert routes == {(path, method) for path, item in paths.items() for method in item if method != "parameters"}


def test_every_problem_type_is_described_and_nothing_else() -> None:
    text = (ROOT / "openapi.yaml").read_text()
    described = {slug for slug in PROBLEMS if f"urn:echoproof:problem:{slug}" in text}
    assert described == PROBLEMS.keys() - ELSEWHERE
    for word in text.split():
        if word.startswith("urn:echoproof:problem:"):
            assert word.strip("}\"'").removeprefix("urn:echoproof:problem:") in PROBLEMS


@pytest.mark.parametrize("name", ["invoice.generate", "report.generate"])
def test_the_examples_are_valid_requests(name: str) -> None:
    body = json.loads(Path(ROOT, "examples", f"{name}.json").read_text())
    Contract().validate({"$ref": "#/components/schemas/OperationRequest"}, body)


def test_every_documented_status_is_given(service: Service, kit: Kit) -> None:
    done, fresh = succeeded(service, kit), service.post(BODY, "openapi-fresh").headers["Location"]
    etag = service.get(done).headers["ETag"]
    requests: dict[str, Callable[..., Answer]] = {
        "submitOperation": lambda caller=APP, key="openapi-new", body=BODY: service.post(body, key, caller=caller),
        "listOperations": lambda caller=APP: service.get(OPERATIONS, caller=caller),
        "readOperation": lambda caller=APP: service.get(fresh, caller=caller),
        "cancelOperation": lambda caller=APP: service.cancel(fresh, caller=caller),
    }
    provoked: set[tuple[str, int]] = set()
    for name, send in requests.items():
        given = [send(), send(caller=None), send(caller=STRANGER)]
        with database_away(service):
            given.append(send())
        with broken_schema(kit):
            given.append(send())
        provoked |= {(name, answer.status) for answer in given}
    large = json.dumps(BODY | {"input": {"text": "x" * 4_000_000}}).encode()
    others = {
        "submitOperation": [
            requests["submitOperation"](),
            requests["submitOperation"](body={}),
            requests["submitOperation"](body=large),
            requests["submitOperation"](body={**BODY, "input": {"n": 2}}),
            service.send("POST", OPERATIONS, b"{}", [("Idempotency-Key", "k"), ("Content-Type", "text/plain")]),
            service.post(BODY, "openapi-new", tenant="rival"),
        ],
        "listOperations": [service.get(f"{OPERATIONS}?state=x"), service.get("/v1/tenants/rival/operations")],
        "readOperation": [
            service.get(f"{done}?wait=x"),
            service.get(NOBODYS),
            service.get(done, [("If-None-Match", etag)]),
        ],
        "cancelOperation": [
            service.cancel("/v1/tenants/Shop/operations/x"),
            service.cancel(NOBODYS),
            service.cancel(done),
        ],
    }
    provoked |= {(name, answer.status) for name, answers in others.items() for answer in answers}
    assert {(name, str(status)) for name, status in provoked} == set(Contract().documented())
