"""Connections with one deadline for all that happens on them; a socket's own timeout starts anew with every byte."""

from __future__ import annotations

import io
import socket
import ssl
import threading
import time
from concurrent.futures import Future
from functools import lru_cache
from typing import Any


class Deadline:
    """The moment by which everything must be over; `each` bounds a single wait, for a server that is merely silent."""

    def __init__(self, seconds: float, each: float | None = None) -> None:
        self._end = time.monotonic() + seconds
        self._each = each

    def left(self) -> float:
        """Return how many seconds the next wait may take; raises TimeoutError when there are none."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left if self._each is None else min(left, self._each)


class Stream:
    """A connected socket under a deadline, as http.client and smtplib use one.

    They close it before they have read it all, so `close` does nothing; who opened it ends it. `ended`: the other
    side has sent its last byte.
    """

    def __init__(self, connected: socket.socket, deadline: Deadline) -> None:
        self.ended = False
        self._socket = connected
        self._deadline = deadline

    def sendall(self, data: bytes) -> None:
        """Send everything; raises OSError."""
        rest = memoryview(data)
        while rest:
            self._socket.settimeout(self._deadline.left())
            rest = rest[self._socket.send(rest) :]

    def receive_into(self, buffer: Any) -> int:
        """Receive what there is; raises OSError."""
        self._socket.settimeout(self._deadline.left())
        count = self._socket.recv_into(buffer)
        self.ended = count == 0
        return count

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return a reader."""
        return io.BufferedReader(_Reader(self))

    def secured(self, host: str) -> Stream:
        """Return it with TLS on top, the host's certificate verified; raises OSError."""
        wrapped = tls().wrap_socket(self._socket, server_hostname=host, do_handshake_on_connect=False)
        try:
            wrapped.settimeout(self._deadline.left())  # of the whole handshake, says the ssl module
            wrapped.do_handshake()
        except BaseException:
            wrapped.close()
            raise
        return Stream(wrapped, self._deadline)

    def close(self) -> None:
        """Do nothing."""

    def end(self) -> None:
        """Close the connection."""
        self._socket.close()


class _Reader(io.RawIOBase):
    def __init__(self, stream: Stream) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._stream.receive_into(buffer)


def connect(host: str, port: int, deadline: Deadline) -> Stream:
    """Connect to the first of a host's addresses that answers; raises OSError."""
    failure: OSError = ConnectionError("the host has no address")
    for family, kind, protocol, _, address in _addresses(host, port, deadline):
        opened = socket.socket(family, kind, protocol)
        try:
            opened.settimeout(deadline.left())
            opened.connect(address)
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a body does not wait for its head's ACK
        except OSError as error:
            opened.close()
            failure = error
        else:
            return Stream(opened, deadline)
    raise failure


@lru_cache(maxsize=1)
def tls() -> ssl.SSLContext:
    """Return the machine's trust; loading it takes tens of milliseconds, so once."""
    return ssl.create_default_context()


def _addresses(host: str, port: int, deadline: Deadline) -> list[Any]:
    """Look a host up, in a thread: the system's resolver knows no deadline."""
    found: Future[list[Any]] = Future()

    def ask() -> None:
        try:
            found.set_result(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except OSError as error:
            found.set_exception(error)
        except UnicodeError:
            found.set_exception(OSError("not the name of a host"))

    threading.Thread(target=ask, name="resolve", daemon=True).start()
    return found.result(deadline.left())
