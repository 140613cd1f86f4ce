"""One HTTP exchange with a deadline for all of it, which tells a request that never left from one that may have."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from shared.errors import EchoproofError

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

    Raises NotReachedError (proof that nothing was sent) or NoAnswerError. An answer that drips in is cut off at the
    deadline: a socket's own timeout would start anew with every byte.
    """
    parts = urlsplit(url)
    connection = _connection(parts.scheme, parts.hostname or "", parts.port, timeout)
    timer = threading.Timer(timeout, _cut, (connection,))
    timer.daemon = True
    timer.start()
    try:
        _connect(connection)
        target = parts.path + (f"?{parts.query}" if parts.query else "")
        return _ask(connection, method, target or "/", headers, body)
    finally:
        timer.cancel()
        connection.close()


def _connection(scheme: str, host: str, port: int | None, timeout: float) -> http.client.HTTPConnection:
    if scheme == "https":
        return http.client.HTTPSConnection(host, port, timeout=timeout, context=ssl.create_default_context())
    return http.client.HTTPConnection(host, port, timeout=timeout)


def _connect(connection: http.client.HTTPConnection) -> None:
    try:
        connection.connect()
    except OSError as error:  # refused, unknown host, handshake failed, timed out: no request was written
        raise NotReachedError(type(error).__name__) from None


def _ask(
    connection: http.client.HTTPConnection, method: str, target: str, headers: Mapping[str, str], body: bytes | None
) -> Answer:
    try:
        connection.request(method, target, body, dict(headers))
        answer = connection.getresponse()
        content = answer.read(MAX_ANSWER_BYTES + 1)
    except (OSError, http.client.HTTPException, ValueError, AttributeError) as error:
        raise NoAnswerError(type(error).__name__) from None
    if len(content) > MAX_ANSWER_BYTES:
        raise NoAnswerError("the answer is too long")
    return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, content)


def _cut(connection: http.client.HTTPConnection) -> None:
    """End whatever the connection waits for."""
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)
