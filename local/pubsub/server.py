"""The embedded Pub/Sub server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from local.pubsub.broker import Broker
from local.pubsub.publisher import Publisher
from local.pubsub.push import Pusher
from local.pubsub.subscriber import Subscriber
from local.serving.calls import Caller
from local.serving.host import GRACE, Server, listen
from local.serving.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from local.pubsub.backlog import Backlog
    from local.signing import Signer

JOURNAL = "pubsub.journal"


class PubSubServer(Server):
    """Pub/Sub on one machine: point PUBSUB_EMULATOR_HOST at its address.

    With a `data` folder everything accepted survives SIGKILL and a restart; without, it lives in memory. With
    a `signer`, pushes of subscriptions that have an `oidc_token` carry a token. `start`, `stop` (tests) or
    `open`, `close` (asyncio). Raises PortInUseError and JournalInUseError.
    """

    def __init__(self, data: Path | None = None, signer: Signer | None = None) -> None:
        self._data = data
        self._signer = signer
        self._server: grpc.aio.Server | None = None
        self._caller: Caller | None = None
        self._journal: Journal | None = None
        self._broker: Broker | None = None
        self._pushers: dict[str, Pusher] = {}

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Read the journal, listen and start pushing; return the port."""
        self._journal = Journal(None if self._data is None else self._data / JOURNAL)
        self._caller = Caller(processing=True)
        self._broker = Broker(self._journal, self._attach, self._detach)
        handlers = (Publisher(self._broker).handler(), Subscriber(self._broker).handler())
        try:
            self._server, bound = await listen(handlers, host, port)
        except Exception:
            await self.close()
            raise
        return bound

    async def close(self) -> None:
        """Stop listening, cancel the pushes in flight and close the journal."""
        if self._server is not None:
            await self._server.stop(GRACE)
            self._server = None
        await asyncio.gather(*(pusher.close() for pusher in self._pushers.values()))
        self._pushers.clear()
        if self._broker is not None:
            self._broker.close()
        if self._caller is not None:
            await self._caller.close()
        if self._journal is not None:
            self._journal.close()

    def _attach(self, backlog: Backlog) -> None:
        assert self._caller is not None  # noqa: S101 - set by open before the broker exists
        self._pushers[backlog.name] = Pusher(backlog, self._caller, self._signer)

    def _detach(self, backlog: Backlog) -> None:
        self._pushers.pop(backlog.name).detach()
