"""Error answers over HTTP: RFC 9457 problem+json with a stable type, and never an exception's text."""

from __future__ import annotations

from typing import Any, NamedTuple

from shared.errors import (
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
    UnauthenticatedError,
)

TYPE_PREFIX = "urn:echoproof:problem:"
RETRY_AFTER = 5  # seconds; a failover takes longer, and a caller that asks again then costs little

# The last part of the type, what it means, and its status. Published: a slug is never renamed or reused.
PROBLEMS: dict[str, tuple[int, str]] = {
    "invalid-json": (400, "The body is not I-JSON"),
    "invalid-request": (400, "The request is not valid"),
    "invalid-query": (400, "A query parameter is not valid"),
    "missing-key": (400, "The Idempotency-Key header is missing"),
    "invalid-key": (400, "The Idempotency-Key header is not valid"),
    "invalid-tenant": (400, "The tenant's name is not valid"),
    "unknown-type": (400, "There is no operation of this type"),
    "unauthenticated": (401, "The caller is not authenticated"),
    "forbidden": (403, "The caller may not do this"),
    "not-found": (404, "There is no such resource"),
    "method-not-allowed": (405, "The method is not allowed here"),
    "conflict": (409, "The resource's state does not allow this"),
    "precondition-failed": (412, "The resource has changed meanwhile"),
    "body-too-large": (413, "The body is too large"),
    "unsupported-media-type": (415, "The body must be application/json"),
    "key-reused": (422, "The Idempotency-Key was used for a different request"),
    "too-many-requests": (429, "There were too many requests"),
    "internal": (500, "Something went wrong on our side"),
    "unavailable": (503, "The service is not available for the moment"),
}
_MEMBERS = frozenset({"type", "title", "status", "detail"})


class Problem(NamedTuple):
    """An error answer: the members of its JSON object, the status and the headers."""

    body: dict[str, Any]
    status: int
    headers: dict[str, str]


def problem(slug: str, detail: str = "", *, retry_after: int | None = None, **extensions: Any) -> Problem:
    """Build an error answer; `detail` and the extension members must be safe to send.

    A 401 carries WWW-Authenticate, a 429 and a 503 Retry-After (`retry_after` seconds). Raises KeyError for a
    slug that is not in PROBLEMS, ValueError for an extension that would replace a standard member.
    """
    status, title = PROBLEMS[slug]
    if taken := _MEMBERS & extensions.keys():
        raise ValueError(f"not an extension: {', '.join(sorted(taken))}")
    body = {"type": TYPE_PREFIX + slug, "title": title, "status": status}
    headers = {"Content-Type": "application/problem+json", "Cache-Control": "no-store"}
    if detail:
        body["detail"] = detail
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if retry_after is not None or status in (429, 503):
        headers["Retry-After"] = str(RETRY_AFTER if retry_after is None else retry_after)
    return Problem(body | extensions, status, headers)


def problem_of(error: BaseException) -> Problem:
    """Build the answer to an error; an error that was not made to be told is answered as `internal`."""
    if isinstance(error, InvalidRequestError):
        pointer: dict[str, Any] = {"pointer": error.pointer} if error.pointer else {}
        return problem(error.slug, error.detail, **pointer)
    for kind, slug in _FIXED.items():
        if isinstance(error, kind):
            return problem(slug)
    return problem("internal")


_FIXED: dict[type[Exception], str] = {
    UnauthenticatedError: "unauthenticated",
    ForbiddenError: "forbidden",
    NotFoundError: "not-found",
    RetryableError: "unavailable",  # also a lock or statement that took too long
}
