"""Run the embedded Pub/Sub, Cloud Tasks and certificates in one process: `python -m local.cloud`."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from local.cloudtasks.server import QUEUE_TOMBSTONE, TASK_TOMBSTONE, CloudTasksServer
from local.pubsub.server import PubSubServer
from local.serving.host import run
from local.signing import CertificateServer, Signer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from local.serving.host import Server


@contextlib.asynccontextmanager
async def _serving(options: argparse.Namespace) -> AsyncIterator[dict[str, str]]:
    signer = Signer(options.data)
    certificates = CertificateServer(signer)
    async with contextlib.AsyncExitStack() as stack:
        addresses: dict[str, str] = {}

        async def serve(name: str, server: Server, port: int) -> None:
            stack.push_async_callback(server.close)
            addresses[name] = f"{options.host}:{await server.open(options.host, port)}"

        await serve("certs", certificates, options.certs_port)
        addresses["certs"] = certificates.url
        if options.pubsub:
            await serve("pubsub", PubSubServer(options.data, signer), options.port)
        if options.tasks:
            tasks = CloudTasksServer(
                options.data,
                signer,
                task_tombstone=options.task_tombstone,
                queue_tombstone=options.queue_tombstone,
            )
            alone = 0 if options.pubsub else options.port
            await serve("tasks", tasks, options.tasks_port or alone)
        yield addresses


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Prints one line of JSON when ready: `pubsub` and `tasks` are host:port, `certs` is a URL.
    """
    parser = argparse.ArgumentParser(prog="python -m local.cloud", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="of Pub/Sub, or of Cloud Tasks alone; 0 = any")
    parser.add_argument("--tasks-port", type=int, default=0, help="of Cloud Tasks beside Pub/Sub; 0 = any")
    parser.add_argument("--certs-port", type=int, default=0, help="of the certificates; 0 = any")
    parser.add_argument("--data", type=Path, help="folder of the journals and the key; without: in memory")
    parser.add_argument("--task-tombstone", type=float, default=TASK_TOMBSTONE, help="seconds")
    parser.add_argument("--queue-tombstone", type=float, default=QUEUE_TOMBSTONE, help="seconds")
    parser.add_argument("--without-pubsub", dest="pubsub", action="store_false")
    parser.add_argument("--without-tasks", dest="tasks", action="store_false")
    return run(_serving(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
