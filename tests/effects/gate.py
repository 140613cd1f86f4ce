"""A TCP proxy before a provider that can hold one request before it arrives, or its answer before it returns."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from enum import Enum

CHUNK = 65_536
PATIENCE = 20.0  # seconds; everything that is waited for takes milliseconds


class Hold(Enum):
    """What is held of the next request that is complete."""

    REQUEST = "its last bytes have left the process and not reached the provider"
    ANSWER = "the provider has answered and the process has not read it"


class Gate:
    """Forwards to a port of 127.0.0.1; `port` is where it listens. A context manager."""

    def __init__(self, upstream: int, complete: Callable[[bytes], bool]) -> None:
        self._upstream = upstream
        self._complete = complete
        self._hold: Hold | None = None
        self._held = threading.Event()
        self._decided = threading.Event()
        self._answered = threading.Event()
        self._forward = False
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def hold(self, what: Hold) -> None:
        """Hold the next request, or its answer."""
        self._hold = what

    def wait_until_held(self) -> None:
        """Return when the request, or its answer, is held."""
        assert self._held.wait(PATIENCE), "no request came"

    def lose(self) -> None:
        """Lose what is held, with its connection."""
        self._decided.set()

    def release(self) -> None:
        """Let the held request arrive, although its sender may be dead; return when the provider has answered it."""
        self._forward = True
        self._decided.set()
        assert self._answered.wait(PATIENCE), "the provider did not answer"

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self._decided.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._open):
            _shut(end)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                server = socket.create_connection(("127.0.0.1", self._upstream))
            except OSError:
                _shut(client)  # as the provider would have, had it been asked directly
                continue
            self._open |= {client, server}
            line = _Line(self, client, server)
            threading.Thread(target=line.carry_requests, daemon=True).start()
            threading.Thread(target=line.carry_answers, daemon=True).start()


class _Line:
    """One connection from a client to the provider."""

    def __init__(self, gate: Gate, client: socket.socket, server: socket.socket) -> None:
        self._gate, self._client, self._server = gate, client, server
        self._sent = b""
        self._taken: Hold | None = None  # what this connection's request made the gate hold

    def carry_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(CHUNK):
                self._sent += data
                if self._gate._hold and self._gate._complete(self._sent):
                    self._taken, self._gate._hold = self._gate._hold, None
                if self._taken is Hold.REQUEST and not self._may_arrive():
                    break
                self._server.sendall(data)
        if self._taken is None or not self._gate._forward:
            self._end()

    def carry_answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._server.recv(CHUNK):
                if self._taken is Hold.ANSWER:
                    self._gate._held.set()
                    self._gate._decided.wait(PATIENCE)
                    break
                if self._taken is Hold.REQUEST:
                    self._gate._answered.set()
                    break
                self._client.sendall(data)
        self._end()

    def _may_arrive(self) -> bool:
        self._gate._held.set()
        self._gate._decided.wait(PATIENCE)
        return self._gate._forward

    def _end(self) -> None:
        for end in (self._client, self._server):
            _shut(end)
            self._gate._open.discard(end)


def whole_http_request(sent: bytes) -> bool:
    """Whether these bytes hold a POST with all of its body."""
    head, _, body = sent.partition(b"\r\n\r\n")
    lengths = [int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return sent.startswith(b"POST") and bool(lengths) and len(body) >= lengths[0]


def whole_mail(sent: bytes) -> bool:
    """Whether these bytes end with the end of a message's data (RFC 5321 §4.1.1.4)."""
    return sent.endswith(b"\r\n.\r\n")


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()
