"""An application that receives webhooks: it verifies the signature and acts once on each webhook-id.

Run it with `python -m local.receiver`. What it received, and on what it acted: /_control/received.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web
from standardwebhooks import Webhook, WebhookVerificationError

from local.faults import Faults, drip, hang_up, shares, take_order
from local.serving.host import PortInUseError, Server, run
from local.serving.journal import Journal

KINDS = frozenset(
    {"drop_before_commit", "drop_after_commit", "hang_before_commit", "hang_after_commit", "drip", "error_unsaved",
     "error_after_commit", "rate_limited", "gone"}
)  # fmt: skip


class Receiver(Server):
    """The application's endpoint at /webhooks; `data` keeps what it acted on."""

    def __init__(self, secret: str, data: Path | None = None) -> None:
        self.faults = Faults(KINDS)
        self.requests: list[dict[str, Any]] = []
        self.received: Counter[str] = Counter()
        self._signature = Webhook(secret)
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
        self._journal = Journal(None if data is None else data / "webhooks.journal")
        self._acted = {identifier for identifier, _ in self._journal.items("")}
        self._runner: web.AppRunner | None = None

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and return the port."""
        application = web.Application()
        application.router.add_post("/webhooks", self._receive)
        application.router.add_post("/_control/faults", partial(take_order, faults=self.faults))
        application.router.add_get("/_control/received", self._show)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise PortInUseError(f"Port {port} of {host} is already in use") from error
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._journal.close()

    def effects(self) -> dict[str, dict[str, Any]]:
        """Return what it acted on, by webhook-id."""
        return {identifier: json.loads(body) for identifier, body in self._journal.items("")}

    async def _receive(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append({"body": body.decode("utf-8", "replace"), "headers": dict(request.headers)})
        fault = self.faults.next()
        kind = fault.kind if fault else ""
        if kind == "drop_before_commit":
            return hang_up(request)
        if kind in ("error_unsaved", "rate_limited", "gone"):
            headers = {"Retry-After": fault.retry_after or "1"} if fault and kind == "rate_limited" else None
            status = {"error_unsaved": 500, "rate_limited": 429, "gone": 410}[kind]
            return web.Response(status=status, headers=headers)
        if fault and kind == "hang_before_commit":
            await asyncio.sleep(fault.seconds)
        answer = self._act(body, request)
        if kind == "drop_after_commit":
            return hang_up(request)
        if kind == "error_after_commit":
            return web.Response(status=500)
        if fault and kind == "hang_after_commit":
            await asyncio.sleep(fault.seconds)
        return await drip(request, answer) if kind == "drip" else answer

    def _act(self, body: bytes, request: web.Request) -> web.Response:
        try:
            self._signature.verify(body, dict(request.headers))
        except WebhookVerificationError:
            return web.Response(status=401)
        except ValueError:  # signed, and not JSON
            return web.Response(status=400)
        identifier = request.headers["webhook-id"]
        self.received[identifier] += 1
        if identifier not in self._acted:
            self._journal.write(puts=[(identifier, body)])
            self._acted.add(identifier)
        return web.json_response({"received": True})

    async def _show(self, _request: web.Request) -> web.Response:
        return web.json_response({"effects": self.effects(), "received": dict(self.received)})


@contextlib.asynccontextmanager
async def _serving(options: argparse.Namespace) -> AsyncIterator[dict[str, str]]:
    server = Receiver(options.secret, options.data)
    server.faults.rates = options.rates
    try:
        yield {"webhooks": f"http://127.0.0.1:{await server.open(port=options.port)}/webhooks"}
    finally:
        await server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local.receiver", description="An application with a webhook.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--data", type=Path, help="folder of what it acted on; without: in memory")
    parser.add_argument("--secret", required=True, help="the shared secret, whsec_ and base64")
    rates = f"JSON of shares by kind of fault: {', '.join(sorted(KINDS))}"
    parser.add_argument("--rates", type=partial(shares, kinds=KINDS), default={}, metavar="RATES", help=rates)
    return run(_serving(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
