"""A total deadline for the calls of a requests session, whose own timeout starts anew with every byte."""

from __future__ import annotations

import contextlib
import socket
import threading
import weakref
from collections.abc import Iterator
from typing import Any

from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

AGAIN = 0.1  # seconds; a connection that opens after the deadline is cut as well


class CuttableAdapter(HTTPAdapter):
    """Carries the calls of one session, used by one thread at a time, and knows their connections."""

    def init_poolmanager(self, *arguments: Any, **options: Any) -> None:
        """Make pools whose connections are known."""
        self._opened: weakref.WeakSet[Any] = weakref.WeakSet()
        super().init_poolmanager(*arguments, **options)
        self.poolmanager.pool_classes_by_scheme = _pools(self._opened)

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """End whatever a call waits for once so much time has passed; the call then fails as if disconnected."""
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(over, seconds), name="deadline", daemon=True)
        watch.start()
        try:
            yield
        finally:
            over.set()

    def _watch(self, over: threading.Event, seconds: float) -> None:
        wait = seconds
        while not over.wait(wait):
            wait = AGAIN
            with contextlib.suppress(RuntimeError):  # one opened at this very moment: it is cut the next time
                for each in list(self._opened):
                    _cut(each if isinstance(each, socket.socket) else each.sock)


def _cut(opened: socket.socket | None) -> None:
    if opened is not None:
        with contextlib.suppress(OSError):
            socket.socket.shutdown(opened, socket.SHUT_RDWR)


def _pools(opened: weakref.WeakSet[Any]) -> dict[str, type[HTTPConnectionPool]]:
    """Return classes of pools that add their connections, and these their sockets.

    Both, for a connection has no socket yet while it shakes hands, and none any more while a last answer is read.
    """

    class Connection(HTTPConnection):
        def connect(self) -> None:
            opened.add(self)
            super().connect()
            opened.add(self.sock)

    class SecureConnection(HTTPSConnection):
        def connect(self) -> None:
            opened.add(self)
            super().connect()
            opened.add(self.sock)

    class Pool(HTTPConnectionPool):
        ConnectionCls = Connection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": Pool, "https": SecurePool}
