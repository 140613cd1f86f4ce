"""One HTTP exchange with a deadline for all of it, which tells a request that never left from one that may have."""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from shared.errors import EchoproofError
from shared.providers.sockets import Deadline, Stream, connect

DEFAULT_PORTS = {"http": 80, "https": 443}
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # a token, RFC 9110 §5.6.2
MAX_ANSWER_BYTES = 1_000_000  # of an answer's body; what providers answer is a few kilobytes


class NotReachedError(EchoproofError):
    """The provider was not reached, so nothing of the request was sent."""


class NoAnswerError(EchoproofError):
    """The request may have arrived, but its answer did not."""


@dataclass(frozen=True)
class Answer:
    """What the other side answered; header names in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(method: str, url: str, headers: Mapping[str, str], body: bytes | None, timeout: float) -> Answer:
    """Send one request and read its answer, all within `timeout` seconds; no redirect is followed, nothing repeated.

    Raises NotReachedError (proof that nothing was sent) or NoAnswerError: no answer, half of one, or one that was not
    over at the deadline.
    """
    deadline = Deadline(timeout)
    try:
        parts = urlsplit(url)
        request = _written(method, parts, headers, body)
        stream = _connected(parts, deadline)
    except (OSError, http.client.HTTPException, ValueError) as error:
        # Not a request, refused, unknown host, handshake failed, timed out: nothing was sent.
        raise NotReachedError(type(error).__name__) from None
    try:
        return _ask(request, stream, body)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise NoAnswerError(type(error).__name__) from None
    finally:
        stream.end()


def _written(
    method: str, parts: SplitResult, headers: Mapping[str, str], body: bytes | None
) -> http.client.HTTPConnection:
    """Write the head of the request down, before anything is connected; raises ValueError or HTTPException."""
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname:
        raise ValueError("not an http or https URL")
    request = http.client.HTTPConnection(parts.hostname)
    request.putrequest(method, (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), skip_host=True)
    request.putheader("Host", parts.netloc.rpartition("@")[2])
    request.putheader("Connection", "close")
    if body is not None:
        request.putheader("Content-Length", str(len(body)))
    for name, value in headers.items():
        if not HEADER_NAME.fullmatch(name) or not value.isprintable():  # http.client lets a folded line pass
            raise ValueError("not a header")
        request.putheader(name, value)
    return request


def _connected(parts: SplitResult, deadline: Deadline) -> Stream:
    host = parts.hostname or ""
    stream = connect(host, parts.port or DEFAULT_PORTS[parts.scheme], deadline)
    if parts.scheme == "http":
        return stream
    try:
        return stream.secured(host)
    except BaseException:
        stream.end()
        raise


def _ask(request: http.client.HTTPConnection, stream: Stream, body: bytes | None) -> Answer:
    request.sock = stream
    request.endheaders(body)
    answer = request.getresponse()
    if stream.ended:  # http.client takes the end of the connection for the end of the head
        raise NoAnswerError("the answer breaks off")
    content = answer.read(MAX_ANSWER_BYTES + 1)
    if len(content) > MAX_ANSWER_BYTES:
        raise NoAnswerError("the answer is too long")
    if answer.length:  # what is missing of its Content-Length
        raise NoAnswerError("the answer breaks off")
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)
