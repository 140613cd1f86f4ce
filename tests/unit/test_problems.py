"""Problem answers: stable types, the right status and headers, never an exception's text."""

import json

import pytest

from shared.errors import (
    EchoproofError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from shared.pipeline import UnknownTypeError
from shared.problems import PROBLEMS, problem, problem_of

# Callers compare these: a slug that was published keeps its status.
PUBLISHED = {
    "invalid-json": 400,
    "invalid-request": 400,
    "invalid-query": 400,
    "missing-key": 400,
    "invalid-key": 400,
    "invalid-tenant": 400,
    "unknown-type": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "not-found": 404,
    "method-not-allowed": 405,
    "conflict": 409,
    "precondition-failed": 412,
    "body-too-large": 413,
    "unsupported-media-type": 415,
    "key-reused": 422,
    "too-many-requests": 429,
    "internal": 500,
    "unavailable": 503,
}


def test_published_problems_keep_their_status() -> None:
    assert {slug: status for slug, (status, _) in PROBLEMS.items()} == PUBLISHED


@pytest.mark.parametrize("slug", PROBLEMS)
def test_every_problem_has_the_members_of_rfc_9457(slug: str) -> None:
    body, status, headers = problem(slug, "because")
    assert body == {
        "type": f"urn:echoproof:problem:{slug}",
        "title": PROBLEMS[slug][1],
        "status": status,
        "detail": "because",
    }
    assert headers["Content-Type"] == "application/problem+json"
    assert ("WWW-Authenticate" in headers) == (status == 401)
    assert ("Retry-After" in headers) == (status in (429, 503))
    json.dumps(body)


def test_extensions() -> None:
    body, _, headers = problem("key-reused", fields=["/input/lines"], retry_after=7)
    assert body["fields"] == ["/input/lines"]
    assert "detail" not in body
    assert headers["Retry-After"] == "7"
    with pytest.raises(ValueError, match="status"):
        problem("internal", status=200)
    with pytest.raises(KeyError):
        problem("no-such-slug")


@pytest.mark.parametrize(
    ("error", "slug"),
    [
        (UnauthenticatedError("canary"), "unauthenticated"),
        (ForbiddenError("canary"), "forbidden"),
        (NotFoundError("canary"), "not-found"),
        (UnknownTypeError("canary"), "not-found"),
        (UnavailableError("canary"), "unavailable"),
        (EchoproofError("canary"), "internal"),
        (ValueError("canary"), "internal"),
        (KeyError("canary"), "internal"),
    ],
)
def test_case_49_an_errors_text_is_never_sent(error: Exception, slug: str) -> None:
    body, status, headers = problem_of(error)
    assert body["type"] == f"urn:echoproof:problem:{slug}"
    assert status == PROBLEMS[slug][0]
    assert "canary" not in json.dumps([body, headers])


def test_a_request_error_is_told_with_its_pointer() -> None:
    answer = problem_of(InvalidRequestError("invalid-request", "must be an object", "/input"))
    assert (answer.status, answer.body["detail"], answer.body["pointer"]) == (400, "must be an object", "/input")
    assert "pointer" not in problem_of(InvalidRequestError("invalid-key", "wrong")).body
