"""The embedded Cloud Tasks server."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from local.cloudtasks.dispatch import Dispatcher
from local.cloudtasks.service import Service
from local.cloudtasks.store import Store
from local.serving.calls import Caller
from local.serving.host import GRACE, Server, listen
from local.serving.journal import Journal

if TYPE_CHECKING:
    from pathlib import Path

    import grpc

    from local.signing import Signer

JOURNAL = "cloudtasks.journal"
TASK_TOMBSTONE = 3600.0  # seconds; Google: "up to 24 hours" after completion or deletion, in practice about one
QUEUE_TOMBSTONE = 3 * 86400.0  # seconds; Google: "several days"


class CloudTasksServer(Server):
    """Cloud Tasks on one machine: give the client an insecure channel to its address.

    With a `data` folder everything accepted survives SIGKILL and a restart; without, it lives in memory. With
    a `signer`, requests of tasks that have an `oidc_token` carry a token. The tombstones are in seconds.
    `start`, `stop` (tests) or `open`, `close` (asyncio). Raises PortInUseError and JournalInUseError.
    """

    def __init__(
        self,
        data: Path | None = None,
        signer: Signer | None = None,
        *,
        task_tombstone: float = TASK_TOMBSTONE,
        queue_tombstone: float = QUEUE_TOMBSTONE,
    ) -> None:
        self._data = data
        self._signer = signer
        self._tombstones = (task_tombstone, queue_tombstone)
        self._server: grpc.aio.Server | None = None
        self._caller: Caller | None = None
        self._journal: Journal | None = None
        self._service: Service | None = None

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Read the journal, listen and start dispatching; return the port."""
        self._journal = Journal(None if self._data is None else self._data / JOURNAL)
        self._caller = caller = Caller()
        store = Store(self._journal, *self._tombstones)

        def dispatching(queue: Any) -> Dispatcher:
            return Dispatcher(queue, store, caller, self._signer)

        self._service = Service(store, dispatching)
        try:
            self._server, bound = await listen([self._service.handler()], host, port)
        except Exception:
            await self.close()
            raise
        return bound

    async def close(self) -> None:
        """Stop listening, cancel the requests in flight and close the journal."""
        if self._server is not None:
            await self._server.stop(GRACE)
            self._server = None
        if self._service is not None:
            await asyncio.gather(*(each.close() for each in self._service.dispatchers.values()))
            self._service.dispatchers.clear()
        if self._caller is not None:
            await self._caller.close()
        if self._journal is not None:
            self._journal.close()
