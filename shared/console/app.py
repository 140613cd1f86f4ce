"""Answers a browser: finds the page, knows who asks, refuses what the role may not, and never shows an exception."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from werkzeug.exceptions import HTTPException, MethodNotAllowed, NotFound, RequestEntityTooLarge
from werkzeug.routing import Map, RequestRedirect, Rule
from werkzeug.wrappers import Request as HttpRequest
from werkzeug.wrappers import Response

from shared import logs
from shared.console import actions, pages
from shared.console.access import Person, authenticator
from shared.console.answers import Desk, Page, Redirect, Refusal, refusal_of
from shared.console.forms import MAX_FORM_BYTES, MAX_FORM_PARTS, Signer
from shared.console.rendering import CONTENT_TYPES, STATIC, STATIC_FILES, renderer
from shared.console.settings import ConsoleSettings
from shared.database import Database
from shared.errors import ForbiddenError, NotFoundError
from shared.intake_reading import drain, refuse_disguised_path
from shared.pipeline import Pipeline

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; base-uri 'none'; connect-src 'self'; form-action 'self'; "
    "frame-ancestors 'none'; img-src 'self'; script-src 'self'; style-src 'self'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Referrer-Policy": "same-origin",  # not no-referrer: a form's Origin would then be null
    "Strict-Transport-Security": "max-age=31536000; includeSubDomains",  # browsers ignore it over http
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
ASSETS = "/assets/"
NOT_KEPT = "no-store"
KEPT = "public, max-age=31536000, immutable"  # a static file's address changes with its content

LOOK: dict[str, Callable[..., Page]] = {
    "/": pages.overview,
    "/operations": pages.operations,
    "/operations/<id>": pages.operation,
    "/dead-letters": pages.letters,
    "/dead-letters/<id>": pages.letter,
    "/review": pages.dry_run,
    "/steps": pages.steps,
}
DECIDE: dict[str, Callable[..., Page | Redirect]] = {
    "/review/replay": actions.replay,
    "/review/resolve": actions.resolve,
    "/review/discard": actions.discard,
    "/review/note": actions.note,
    "/pauses": actions.pause,
    "/pauses/end": actions.end_pause,
}
ROUTES = Map(
    [
        *(Rule(path, methods=["GET"], endpoint=path) for path in LOOK),
        *(Rule(path, methods=["POST"], endpoint=path) for path in DECIDE),
    ],
    strict_slashes=True,
    merge_slashes=False,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Who:
    """Whom a page is written for; nobody, on a page that says why not."""

    person: Person | None
    token: str


class Console:
    """The function behind the pages; may serve many threads."""

    def __init__(self, database: Database, pipeline: Pipeline, settings: ConsoleSettings) -> None:
        self._desk = Desk(database, pipeline)
        self._authenticate: Callable[[HttpRequest], Person] = authenticator(settings)
        self._signer = Signer(settings)
        self._render = renderer()

    def answer(self, request: HttpRequest) -> Response:
        """Answer one request; never raises."""
        request.max_content_length = request.max_form_memory_size = MAX_FORM_BYTES
        request.max_form_parts = MAX_FORM_PARTS
        who = _Who(None, "")
        try:
            if request.path.startswith(ASSETS):  # they are the same for everybody, and a refusal needs them too
                return self._static(request.path.removeprefix(ASSETS))
            person = self._authenticate(request)
            who = _Who(person, self._signer.token(person.name))
            endpoint, values = self._routed(request)
            return self._view(request, who, person, endpoint, values)
        except Exception as error:  # noqa: BLE001 - the page says so, the log says what
            return self._refused(error, who, request.method)
        finally:
            drain(request)

    def refuse(self, error: HTTPException) -> Response:
        """Answer what the framework refuses before the console is asked."""
        return self._refused(error, _Who(None, ""))

    def _routed(self, request: HttpRequest) -> tuple[str, dict[str, Any]]:
        refuse_disguised_path(request)
        endpoint, values = ROUTES.bind_to_environ(request.environ).match()
        return str(endpoint), dict(values)

    def _view(self, request: HttpRequest, who: _Who, person: Person, endpoint: str, values: dict[str, Any]) -> Response:
        if look := LOOK.get(endpoint):
            page = look(self._desk, request.args, **values)
            return self._page(who, page.template, page.values, page.status)
        if not person.may_decide:
            raise ForbiddenError("a viewer looks; decisions are an operator's")
        if request.mimetype != "application/x-www-form-urlencoded":
            raise NotFoundError
        self._signer.check(request, person.name)
        with logs.bind(actor=person.name):
            done = DECIDE[endpoint](self._desk, request.form, person)
        if isinstance(done, Redirect):
            return Response(status=303, headers={**HEADERS, "Location": done.to, "Cache-Control": NOT_KEPT})
        return self._page(who, done.template, done.values, done.status)

    def _static(self, name: str) -> Response:
        if name not in STATIC_FILES:
            raise NotFoundError
        path = STATIC / name
        kind = CONTENT_TYPES[path.suffix]
        return Response(
            path.read_bytes(), content_type=f"{kind}; charset=utf-8", headers={**HEADERS, "Cache-Control": KEPT}
        )

    def _refused(self, error: Exception, who: _Who, method: str = "GET") -> Response:
        shown = _of_http(error) if isinstance(error, HTTPException) else refusal_of(error)
        if shown.status >= 500:
            log.error("request failed", exc_info=error)
        answer = self._page(who, "error.html", {"shown": shown, "decided": method == "POST"}, shown.status)
        answer.headers.update(shown.headers)
        return answer

    def _page(self, who: _Who, template: str, values: dict[str, Any], status: int) -> Response:
        body = self._render(template, person=who.person, token=who.token, **{"refresh": None, **values})
        kind = "text/html; charset=utf-8"
        return Response(body, status=status, content_type=kind, headers={**HEADERS, "Cache-Control": NOT_KEPT})


def _of_http(error: HTTPException) -> Refusal:
    if isinstance(error, MethodNotAllowed):
        allowed = ", ".join(sorted(error.valid_methods or ()))
        return Refusal(405, "Not here", "This address does not take such a request.", {"Allow": allowed})
    if isinstance(error, NotFound | RequestRedirect):
        return refusal_of(NotFoundError())
    if isinstance(error, RequestEntityTooLarge):
        return Refusal(413, "Too large", "The form is larger than anything the console asks for.")
    if error.code is not None and error.code < 500:
        return Refusal(400, "Not understood", "This is not a request of the console.")
    return refusal_of(error)
