"""Running an asyncio server: in a background thread for tests, or as a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import grpc

from local.serving.rpc import OPTIONS
from shared.errors import EchoproofError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence
    from contextlib import AbstractAsyncContextManager

Result = TypeVar("Result")
CALL_TIMEOUT = 30.0  # seconds; opening reads the journal, closing cancels the calls in flight
GRACE = 0.2  # seconds that a gRPC call in flight may take to end when the server stops


class PortInUseError(UnavailableError):
    """The port is already in use."""


class Server(ABC):
    """A server with a sync face (`start`, `stop`) over an async one (`open`, `close`).

    All servers started by `start` share one event loop in one daemon thread: gRPC's asyncio stack likes a
    single loop in a process.
    """

    _loop: ClassVar[asyncio.AbstractEventLoop | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    @abstractmethod
    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; return the port. Raises PortInUseError."""

    @abstractmethod
    async def close(self) -> None:
        """Stop listening and delivering, and close the files; harmless when not open."""

    def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Open the server on the background loop and return its port. Raises PortInUseError."""
        return self._call(self.open(host, port))

    def stop(self) -> None:
        """Close the server; harmless when it is not running."""
        self._call(self.close())

    @classmethod
    def _call(cls, coroutine: Coroutine[Any, Any, Result]) -> Result:
        with Server._guard:
            if Server._loop is None:
                Server._loop = asyncio.new_event_loop()
                threading.Thread(target=Server._loop.run_forever, name="servers", daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, Server._loop).result(CALL_TIMEOUT)


async def listen(handlers: Sequence[grpc.GenericRpcHandler], host: str, port: int) -> tuple[grpc.aio.Server, int]:
    """Start a gRPC server; return it and its port. Raises PortInUseError."""
    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers(tuple(handlers))
    try:
        bound = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as error:
        raise PortInUseError(f"Port {port} of {host} is already in use") from error
    await server.start()
    return server, bound


def run(serving: AbstractAsyncContextManager[dict[str, str]]) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    `serving` opens the servers and yields their addresses, which are printed as one line of JSON on standard
    output once everything is ready.
    """
    try:
        return asyncio.run(_until_told(serving))
    except EchoproofError as error:  # a port or a data folder in use
        sys.stderr.write(f"{error}\n")
        return 1


async def _until_told(serving: AbstractAsyncContextManager[dict[str, str]]) -> int:
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    async with serving as addresses:
        sys.stdout.write(json.dumps(addresses) + "\n")
        sys.stdout.flush()
        await told.wait()
    return 0
