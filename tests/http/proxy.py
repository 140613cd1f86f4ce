"""A TCP proxy before PostgreSQL that can lose what passes through it, at a place that a test chooses."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from enum import Enum

READY = b"Z\x00\x00\x00\x05I"  # ReadyForQuery, idle: the server has committed (PostgreSQL, chapter 55.7)
CHUNK = 65_536


class Lose(Enum):
    """What is lost with the connection that carries the marker."""

    REQUEST = "the statement never arrives"
    ANSWER = "the answer to the commit never arrives"


class Proxy:
    """Forwards to PostgreSQL on 127.0.0.1; `port` is where it listens."""

    def __init__(self, upstream: int) -> None:
        self.upstream = upstream
        self.lost = 0  # connections dropped by `lose`
        self.refusing = False  # while set, every connection is closed as soon as it is opened
        self._marker: bytes | None = None
        self._what = Lose.ANSWER
        self._times = 0
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose(self, marker: bytes, what: Lose, times: int = 1) -> None:
        """Drop the next `times` connections on which the client sends the marker."""
        with self._lock:
            self._marker, self._what, self._times, self.lost = marker, what, times, 0

    def refuse(self, *, refusing: bool) -> None:
        """Drop every connection and let no new one through, until told otherwise."""
        self.refusing = refusing
        if refusing:
            self.drop()

    def drop(self) -> None:
        """Drop every connection."""
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            _reset(connection)

    def close(self) -> None:
        """Stop listening and drop every connection."""
        self.refuse(refusing=True)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = None if self.refusing else socket.create_connection(("127.0.0.1", self.upstream))
            except ConnectionRefusedError:
                server = None
            except OSError:
                return
            if server is None:
                _reset(client)
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _Line(self, client, server).start()

    def _take(self, sent: bytes) -> Lose | None:
        """Say what to lose of a connection on which these bytes were sent."""
        with self._lock:
            if self._marker is None or self._marker not in sent or self._times == 0:
                return None
            self._times -= 1
            self.lost += 1
            return self._what


class _Line:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy, self._client, self._server = proxy, client, server
        self._losing = False

    def start(self) -> None:
        with self._proxy._lock:
            self._proxy._open |= {self._client, self._server}
        for pump in (self._requests, self._answers):
            threading.Thread(target=self._pump, args=(pump,), daemon=True).start()

    def _pump(self, pump: object) -> None:
        assert callable(pump)
        with contextlib.suppress(OSError):
            pump()
        for end in (self._client, self._server):
            _reset(end)
            with self._proxy._lock:
                self._proxy._open.discard(end)

    def _requests(self) -> None:
        while data := self._client.recv(CHUNK):
            what = self._proxy._take(data)
            if what is Lose.REQUEST:
                return
            self._losing = self._losing or what is Lose.ANSWER
            self._server.sendall(data)

    def _answers(self) -> None:
        withheld = b""
        while data := self._server.recv(CHUNK):
            if self._losing:
                withheld += data
                if withheld.endswith(READY):
                    return
            else:
                self._client.sendall(data)


def _reset(end: socket.socket) -> None:
    """Close with RST, as when a machine or its network is gone."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.shutdown(socket.SHUT_RDWR)
    with contextlib.suppress(OSError):
        end.close()
