"""A TCP server that does to each connection what a test says, and keeps what it was sent."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

DRIP = 0.05  # seconds between two bytes
Script = Callable[["Visit"], object]


class Visit:
    """One connection: `request` is what has been read of it."""

    def __init__(self, connection: socket.socket, over: threading.Event) -> None:
        self.connection = connection
        self.over = over
        self.request = b""

    def read(self) -> Visit:
        """Read one HTTP request."""
        while b"\r\n\r\n" not in self.request:
            self._more()
        head = self.request.partition(b"\r\n\r\n")[0]
        length = next(
            (int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0
        )
        while length > len(self.request) - len(head) - 4:
            self._more()
        return self

    def say(self, *parts: bytes) -> Visit:
        self.connection.sendall(b"".join(parts))
        return self

    def drip(self, data: bytes) -> Visit:
        for byte in data:
            self.say(bytes([byte]))
            if self.over.wait(DRIP):
                break
        return self

    def repeat(self, data: bytes) -> None:
        """Say it again and again, until the other side has had enough."""
        while not self.over.is_set():
            self.say(data)

    def hang(self) -> None:
        self.over.wait(60)

    def reset(self) -> None:
        """Close with a RST."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _more(self) -> None:
        data = self.connection.recv(65536)
        if not data:
            raise ConnectionError
        self.request += data


class Scripted:
    """Serves until the end of its `with`; a thread for each connection."""

    def __init__(self, script: Script) -> None:
        self.visits: list[Visit] = []
        self._script = script
        self._over = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.port: int = self._server.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept, daemon=True)]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def requests(self) -> list[bytes]:
        return [visit.request for visit in self.visits if visit.request]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._server.accept()
                visit = Visit(connection, self._over)
                self.visits.append(visit)
                thread = threading.Thread(target=self._serve, args=(visit,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, visit: Visit) -> None:
        with visit.connection, contextlib.suppress(OSError):
            self._script(visit)


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """Return an HTTP answer with its length."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + body


def closed_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port
