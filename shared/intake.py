"""The HTTP API: accepts operations, tells their state, lists and cancels them.

`/v1/tenants/{tenant}/operations…`; openapi.yaml describes it. A 202 means that the row is committed; what a status
says comes from the database alone. Errors are problem+json with a stable type.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import Map, RequestRedirect, Rule
from werkzeug.wrappers import Request as HttpRequest
from werkzeug.wrappers import Response

from shared import logs, operations
from shared.config import ANONYMOUS, IntakeSettings
from shared.errors import InvalidRequestError, NotFoundError
from shared.identity import Request, check_key, check_tenant, check_type, parse_request
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.problems import Problem, problem, problem_of
from shared.request import MAX_BODY_BYTES
from shared.tracing import traceparent_of

LONGEST_POLL = 30.0  # seconds; load balancers and clients give up soon after
POLL_EVERY = 0.25  # seconds between two reads of a long poll
RETRY_AFTER = 2  # seconds until an unfinished operation is worth another look
PAGE_SIZE = 50
LARGEST_PAGE = 500
STATES = frozenset({"requested", "running", "succeeded", "failed", "cancelled", "needs_review"})

ROUTES = Map(
    [
        Rule("/v1/tenants/<tenant>/operations", methods=["POST"], endpoint="submit"),
        Rule("/v1/tenants/<tenant>/operations", methods=["GET"], endpoint="page"),
        Rule("/v1/tenants/<tenant>/operations/<operation_id>", methods=["GET"], endpoint="status"),
        Rule("/v1/tenants/<tenant>/operations/<operation_id>:cancel", methods=["POST"], endpoint="cancel"),
    ],
    strict_slashes=True,
    merge_slashes=False,
)

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
            return self._routed(request)
        except MethodNotAllowed as error:
            return _problem_response(problem("method-not-allowed"), {"Allow": ", ".join(error.valid_methods or ())})
        except (NotFound, RequestRedirect):
            return _problem_response(problem("not-found"))
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
        endpoint, values = ROUTES.bind_to_environ(request.environ).match()
        values = dict(values)
        tenant = check_tenant(values["tenant"])
        if not self.authenticate(request).may_use(tenant):
            raise NotFoundError
        if "operation_id" in values:
            values["operation_id"] = _operation_id(values["operation_id"])
        view: Callable[..., Response] = getattr(self, f"_{endpoint}")
        with logs.bind(tenant=tenant):
            return view(request, **values)

    def _submit(self, request: HttpRequest, tenant: str) -> Response:
        key, asked = self._read_submission(request)
        accepted = operations.accept(
            self.outbox.database, self.pipeline, tenant, key, asked, traceparent_of(request.headers.get("traceparent"))
        )
        self.outbox.publish_at_once(accepted.due)
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
        keys = request.headers.getlist("Idempotency-Key")
        if not keys:
            raise InvalidRequestError("missing-key", "send an Idempotency-Key header, one for each business operation")
        if len(keys) > 1:
            raise InvalidRequestError("invalid-key", "send one Idempotency-Key header")
        key = check_key(keys[0])
        if request.mimetype != "application/json":
            raise InvalidRequestError("unsupported-media-type", "send application/json")
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise InvalidRequestError("body-too-large", f"a body has at most {MAX_BODY_BYTES} bytes")
        asked = parse_request(request.get_data(cache=False), self.pipeline)
        if asked.options.ordering_key is not None:
            raise InvalidRequestError(
                "invalid-request", "ordering keys are not supported yet: leave it out", "/ordering_key"
            )
        return key, asked

    def _status(self, request: HttpRequest, tenant: str, operation_id: UUID) -> Response:
        wait = _seconds(request.args.get("wait"))
        known = request.headers.get("If-None-Match")
        deadline = time.monotonic() + wait
        while True:
            body = operations.read(self.outbox.database, tenant, operation_id)
            etag = _etag(body)
            resting = body["state"] in operations.RESTING
            if resting or (known is not None and known != etag) or time.monotonic() >= deadline:
                break
            time.sleep(min(POLL_EVERY, max(deadline - time.monotonic(), 0)))
        headers = {"ETag": etag, "Cache-Control": "no-cache"} | ({} if resting else {"Retry-After": str(RETRY_AFTER)})
        if known == etag:
            return Response(status=304, headers=headers)
        return _json(body, 200, headers)

    def _page(self, request: HttpRequest, tenant: str) -> Response:
        unknown = set(request.args) - {"state", "type", "cursor", "page_size"}
        if unknown:
            raise InvalidRequestError("invalid-query", "only state, type, cursor and page_size are known")
        page, cursor = operations.list_page(
            self.outbox.database,
            tenant,
            state=_state(request.args.get("state")),
            operation_type=_type(request.args.get("type")),
            cursor=_cursor(request.args.get("cursor")),
            page_size=_page_size(request.args.get("page_size")),
        )
        return _json({"operations": page} | ({"cursor": str(cursor)} if cursor else {}), 200)

    def _cancel(self, request: HttpRequest, tenant: str, operation_id: UUID) -> Response:  # noqa: ARG002 - a view
        operations.cancel(self.outbox.database, tenant, operation_id)
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


def _operation_id(text: str) -> UUID:
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        raise NotFoundError
    return UUID(text)


def _query(detail: str) -> InvalidRequestError:
    return InvalidRequestError("invalid-query", detail)


def _state(text: str | None) -> str | None:
    if text is not None and text not in STATES:
        raise _query(f"state is one of {', '.join(sorted(STATES))}")
    return text


def _type(text: str | None) -> str | None:
    try:
        return text if text is None else check_type(text)
    except InvalidRequestError:
        raise _query("type looks like invoice.generate") from None


def _cursor(text: str | None) -> UUID | None:
    try:
        return None if text is None else _operation_id(text)
    except NotFoundError:
        raise _query("cursor is what the page before answered") from None


def _page_size(text: str | None) -> int:
    if text is None:
        return PAGE_SIZE
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text) or int(text) > LARGEST_PAGE:
        raise _query(f"page_size is a number from 1 to {LARGEST_PAGE}")
    return int(text)


def _seconds(text: str | None) -> float:
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,2}s", text) or int(text[:-1]) > LONGEST_POLL:
        raise _query(f"wait looks like 20s, at most {LONGEST_POLL:.0f}s")
    return float(text[:-1])


def _etag(body: dict[str, Any]) -> str:
    return f'"{hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:32]}"'


def _json(body: dict[str, Any], status: int, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(body) + "\n", status=status, headers=headers, content_type="application/json")


def _problem_response(answer: Problem, headers: dict[str, str] | None = None) -> Response:
    return Response(json.dumps(answer.body) + "\n", status=answer.status, headers=answer.headers | (headers or {}))
