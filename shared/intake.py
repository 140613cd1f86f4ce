"""The HTTP API: accepts operations, tells their state, lists and cancels them.

`/v1/tenants/{tenant}/operations…`; openapi.yaml describes it. A 202 means that the row is committed; what a status
says comes from the database alone. Errors are problem+json with a stable type.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound
from werkzeug.routing import BaseConverter, Map, RequestRedirect, Rule
from werkzeug.wrappers import Request as HttpRequest
from werkzeug.wrappers import Response

from shared import admission, logs, operations
from shared.config import ANONYMOUS, IntakeSettings
from shared.errors import InvalidRequestError, NotFoundError
from shared.identity import Request, check_tenant, parse_request
from shared.intake_reading import (
    check_query,
    cursor_of,
    drain,
    operation_id_of,
    page_size_of,
    read_body,
    read_key,
    refuse_disguised_path,
    seconds_of,
    state_of,
    type_of,
)
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.problems import Problem, problem, problem_of
from shared.tracing import traceparent_of

POLL_EVERY = 0.25  # seconds between two reads of a long poll
RETRY_AFTER = 2  # seconds until an unfinished operation is worth another look


class _Name(BaseConverter):
    """A part of a path without the colon that a custom method starts with."""

    regex = r"[^/:]+"


ROUTES = Map(
    [
        Rule("/v1/tenants/<tenant>/operations", methods=["POST"], endpoint="submit"),
        Rule("/v1/tenants/<tenant>/operations", methods=["GET"], endpoint="page"),
        Rule("/v1/tenants/<tenant>/operations/<name:operation_id>", methods=["GET"], endpoint="status"),
        Rule("/v1/tenants/<tenant>/operations/<name:operation_id>:cancel", methods=["POST"], endpoint="cancel"),
    ],
    strict_slashes=True,
    merge_slashes=False,
    converters={"name": _Name},
)
QUERIES = {"page": frozenset({"state", "type", "cursor", "page_size"}), "status": frozenset({"wait"})}

log = logging.getLogger(__name__)
Authenticate = Callable[[HttpRequest], "Caller"]


@dataclass(frozen=True)
class Caller:
    """Who asks, and for which tenants it may ask (`*`: all)."""

    name: str
    tenants: frozenset[str]

    def may_use(self, tenant: str) -> bool:
        """Whether the caller may act for the tenant."""
        return tenant in self.tenants or "*" in self.tenants


@dataclass(frozen=True)
class Intake:
    """The function behind the API."""

    outbox: Outbox
    pipeline: Pipeline
    authenticate: Authenticate

    def answer(self, request: HttpRequest) -> Response:
        """Answer one request; never raises, and never shows an exception's text."""
        try:
            return self._answered(request)
        finally:
            drain(request)

    def _answered(self, request: HttpRequest) -> Response:
        try:
            return self._routed(request)
        except HTTPException as error:
            return refusal(error)
        except operations.KeyReusedError as error:
            detail = "the key was used for a request that differs in the fields listed"
            return _problem_response(problem("key-reused", detail, fields=error.fields))
        except operations.NotCancellableError as error:
            return _problem_response(problem("conflict", str(error), state=error.state))
        except Exception as error:
            answer = problem_of(error)
            if answer.status >= 500:
                log.exception("request failed")
            return _problem_response(answer)

    def _routed(self, request: HttpRequest) -> Response:
        refuse_disguised_path(request)
        endpoint, values = ROUTES.bind_to_environ(request.environ).match()
        values = dict(values)
        caller = self.authenticate(request)
        tenant = check_tenant(values["tenant"])
        if not caller.may_use(tenant):
            raise NotFoundError
        if "operation_id" in values:
            values["operation_id"] = operation_id_of(values["operation_id"])
        check_query(request, QUERIES.get(endpoint, frozenset()))
        view: Callable[..., Response] = getattr(self, f"_{endpoint}")
        with logs.bind(tenant=tenant):
            return view(request, **values)

    def _submit(self, request: HttpRequest, tenant: str) -> Response:
        key, asked = self._read_submission(request)
        accepted = operations.accept(
            self.outbox.database,
            self.pipeline,
            tenant,
            key,
            asked,
            traceparent_of(request.headers.get("traceparent")),
            self.outbox.writer_lease,
        )
        self.outbox.publish_at_once(accepted.due)
        if accepted.waits:
            admission.admit(self.outbox, self.pipeline, tenant)
        location = f"/v1/tenants/{tenant}/operations/{accepted.operation_id}"
        if accepted.new:
            log.info("accepted", extra={"operation_id": str(accepted.operation_id), "type": asked.type})
            body = {"id": str(accepted.operation_id), "tenant": tenant, "type": asked.type, "state": "requested"}
            return _json(body, 202, {"Location": location, "Retry-After": str(RETRY_AFTER)})
        recorded = self._recorded(tenant, accepted.operation_id)
        return _json(recorded, 200, {"Location": location, "Idempotent-Replayed": "true"})

    def _recorded(self, tenant: str, operation_id: UUID) -> dict[str, Any]:
        try:
            return operations.read(self.outbox.database, tenant, operation_id)
        except NotFoundError:  # the identity outlives the operation's record
            return {"id": str(operation_id), "tenant": tenant, "state": "pruned"}

    def _read_submission(self, request: HttpRequest) -> tuple[str, Request]:
        key = read_key(request)
        if request.mimetype != "application/json" or request.headers.get("Content-Encoding", "identity") != "identity":
            raise InvalidRequestError("unsupported-media-type", "send application/json, without a content encoding")
        return key, parse_request(read_body(request), self.pipeline)

    def _status(self, request: HttpRequest, tenant: str, operation_id: UUID) -> Response:
        wait = seconds_of(request.args.get("wait"))
        known = request.if_none_match
        deadline = time.monotonic() + wait
        while True:
            body = operations.read(self.outbox.database, tenant, operation_id)
            etag = _etag(body)
            resting = body["state"] in operations.RESTING
            changed = bool(known) and not known.contains_weak(etag)
            if resting or changed or time.monotonic() >= deadline:
                break
            time.sleep(min(POLL_EVERY, max(deadline - time.monotonic(), 0)))
        headers = {"ETag": f'"{etag}"', "Cache-Control": "no-cache"} | (
            {} if resting else {"Retry-After": str(RETRY_AFTER)}
        )
        if known.contains_weak(etag):
            return Response(status=304, headers=headers)
        return _json(body, 200, headers)

    def _page(self, request: HttpRequest, tenant: str) -> Response:
        page, cursor = operations.list_page(
            self.outbox.database,
            tenant,
            state=state_of(request.args.get("state")),
            operation_type=type_of(request.args.get("type")),
            cursor=cursor_of(request.args.get("cursor")),
            page_size=page_size_of(request.args.get("page_size")),
        )
        return _json({"operations": page} | ({"cursor": str(cursor)} if cursor else {}), 200)

    def _cancel(self, request: HttpRequest, tenant: str, operation_id: UUID) -> Response:  # noqa: ARG002 - a view
        operations.cancel(self.outbox.database, tenant, operation_id)
        admission.admit(self.outbox, self.pipeline, tenant)  # what waited behind it
        return _json(operations.read(self.outbox.database, tenant, operation_id), 200)


def authenticator(settings: IntakeSettings) -> Authenticate:
    """Return how callers are recognised: by their token's e-mail, or as `anonymous` where that is allowed.

    What it returns raises UnauthenticatedError or ForbiddenError for a request that is neither.
    """
    verifier = settings.verifier()

    def authenticate(request: HttpRequest) -> Caller:
        header = request.headers.get("Authorization")
        if verifier is None or (header is None and ANONYMOUS in settings.callers):
            return Caller(ANONYMOUS, settings.callers[ANONYMOUS])
        email = verifier.verify(header).email
        return Caller(email, settings.callers[email])

    return authenticate


def refusal(error: HTTPException) -> Response:
    """Answer what the routing or the framework around it refuses, without its text."""
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return _problem_response(problem("method-not-allowed"), {"Allow": allowed})
    if isinstance(error, (NotFound, RequestRedirect)):
        return _problem_response(problem("not-found"))
    if error.code is not None and error.code < 500:
        return _problem_response(problem("invalid-request", "this is not a request of the API"))
    return _problem_response(problem("internal"))


def _etag(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]


def _json(body: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body) + "\n", status=status, headers=headers, content_type="application/json")


def _problem_response(answer: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(answer.body) + "\n", status=answer.status, headers=answer.headers | (headers or {}))
