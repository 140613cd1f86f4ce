"""Reading what an HTTP request carries besides its JSON: the key, the body's bytes, the query's parameters.

Whatever is wrong is an InvalidRequestError (400, 413, 415) that never holds what was sent, or a NotFoundError.
"""

from __future__ import annotations

import contextlib
import io
import re
from uuid import UUID

from werkzeug.wrappers import Request as HttpRequest

from shared.errors import InvalidRequestError, NotFoundError
from shared.identity import check_key, check_type
from shared.request import MAX_BODY_BYTES

LONGEST_POLL = 30.0  # seconds; load balancers and clients give up soon after
PAGE_SIZE = 50
LARGEST_PAGE = 500
STATES = frozenset({"requested", "running", "succeeded", "failed", "cancelled", "needs_review"})
DRAIN_CHUNK = 65_536  # bytes of a body that nobody wants, read at once
DRAIN_LIMIT = 33_554_432  # bytes; Cloud Run takes no larger request over HTTP/1


def read_key(request: HttpRequest) -> str:
    """Return the Idempotency-Key; raises InvalidRequestError (missing-key, invalid-key)."""
    headers = request.headers.getlist("Idempotency-Key")
    if not headers:
        raise InvalidRequestError("missing-key", "send an Idempotency-Key header, one for each business operation")
    key = check_key(headers[0])
    # An HTTP server joins two headers of one name with a comma, as RFC 9110 (5.3) allows; within quotes it is none.
    if len(headers) > 1 or ("," in key and not headers[0].strip().startswith('"')):
        raise InvalidRequestError("invalid-key", "send one Idempotency-Key header, in quotes when it has a comma")
    return key


def read_body(request: HttpRequest) -> bytes:
    """Read the body, never more of it than one byte beyond what is allowed."""
    length = request.content_length
    if (length or 0) > MAX_BODY_BYTES:
        raise _too_large()
    try:
        body = request.stream.read(MAX_BODY_BYTES + 1)
    except Exception as error:  # the server's own: a bad chunk, a caller that went away
        raise _cut_short() from error
    if len(body) > MAX_BODY_BYTES:
        raise _too_large()
    if length is not None and len(body) < length:
        raise _cut_short()
    return body


def _too_large() -> InvalidRequestError:
    return InvalidRequestError("body-too-large", f"a body has at most {MAX_BODY_BYTES} bytes")


def _cut_short() -> InvalidRequestError:
    return InvalidRequestError("invalid-request", "the body ends early")


def drain(request: HttpRequest) -> None:
    """Read what is left of the body, in bounded memory: the framework would read all of it at once."""
    with contextlib.suppress(Exception):  # what ends early is at its end, too
        for _ in range(DRAIN_LIMIT // DRAIN_CHUNK):
            if not request.stream.read(DRAIN_CHUNK):
                break
    request.stream = io.BytesIO()


def refuse_disguised_path(request: HttpRequest) -> None:
    """Raise NotFoundError for a path that decoding or routing would make into another resource's."""
    raw = str(request.environ.get("RAW_URI", "")).partition("?")[0].lower()
    if "%2f" in raw or request.environ.get("PATH_INFO", "").startswith("//"):
        raise NotFoundError


def check_query(request: HttpRequest, known: frozenset[str]) -> None:
    """Refuse parameters that are not known or given twice."""
    if unknown := request.args.keys() - known:
        names = ", ".join(sorted(known)) or "no parameter"
        raise _query(f"known here: {names}; {len(unknown)} other given")
    if any(len(values) > 1 for _, values in request.args.lists()):
        raise _query("a parameter is given more than once")


def operation_id_of(text: str) -> UUID:
    """Read an operation's id; raises NotFoundError for anything else: there is no such operation."""
    if not re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", text):
        raise NotFoundError
    return UUID(text)


def _query(detail: str) -> InvalidRequestError:
    return InvalidRequestError("invalid-query", detail)


def state_of(text: str | None) -> str | None:
    """Read the state that a list is of; None is every one."""
    if text is not None and text not in STATES:
        raise _query(f"state is one of {', '.join(sorted(STATES))}")
    return text


def type_of(text: str | None) -> str | None:
    """Read the type that a list is of; None is every one."""
    try:
        return text if text is None else check_type(text)
    except InvalidRequestError:
        raise _query("type looks like invoice.generate") from None


def cursor_of(text: str | None) -> UUID | None:
    """Read where a page starts; None is the newest."""
    try:
        return None if text is None else operation_id_of(text)
    except NotFoundError:
        raise _query("cursor is what the page before answered") from None


def page_size_of(text: str | None) -> int:
    """Read how many operations a page has."""
    if text is None:
        return PAGE_SIZE
    if not re.fullmatch(r"[1-9][0-9]{0,2}", text) or int(text) > LARGEST_PAGE:
        raise _query(f"page_size is a number from 1 to {LARGEST_PAGE}")
    return int(text)


def seconds_of(text: str | None) -> float:
    """Read how long a poll may take, in seconds."""
    if text is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,2}s", text) or int(text[:-1]) > LONGEST_POLL:
        raise _query(f"wait looks like 20s, at most {LONGEST_POLL:.0f}s")
    return float(text[:-1])
