"""A payment provider with Stripe's contract for idempotent requests, which misbehaves when told to.

A key's first result is saved with its status, a 500 too, and given again with `Idempotent-Replayed: true`; a result is
saved once the request began to execute, so a refused login or missing parameter is not; other parameters under a key
are a 400, the same key in progress a 409; keys are pruned after the horizon, by a clock that tests can move. Run it
with `python -m local.payments`. It keeps a ledger of what really happened: /_control/ledger.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from local.faults import Fault, Faults, drip, hang_up, shares, take_order
from local.payment_answers import error, intent, invalid, parameters, refusal
from local.serving.host import PortInUseError, Server, run

HORIZON = 86_400.0  # seconds; Stripe prunes keys once they are at least 24 hours old
SEARCH = re.compile(r"""metadata\[(['"])(\w+)\1\]:(['"])([\w-]+)\3""")
KINDS = frozenset(
    {
        "drop_before_commit", "drop_after_commit", "hang_before_commit", "hang_after_commit", "drip", "decline",
        "error_unsaved", "error_saved", "error_after_commit", "rate_limited", "conflict", "unauthorised",
        "search_down",
    }
)  # fmt: skip
OF_SEARCH = frozenset({"search_down"})
OF_PAYMENT = KINDS - OF_SEARCH | {"none"}
SCHEMA = """
CREATE TABLE IF NOT EXISTS keys (key TEXT PRIMARY KEY, parameters TEXT, status INTEGER, body TEXT, used REAL);
CREATE TABLE IF NOT EXISTS payments (id TEXT PRIMARY KEY, key TEXT, intent TEXT, made REAL);
PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF;
"""


class PaymentServer(Server):
    """The provider; `data` keeps its ledger and keys, without it they are gone with the process."""

    def __init__(self, data: Path | None = None, *, visibility: float = 0.0, horizon: float = HORIZON) -> None:
        self.faults = Faults(KINDS)
        self.requests: list[dict[str, Any]] = []
        self._visibility = visibility
        self._horizon = horizon
        self._moved = 0.0
        self._busy: set[str] = set()
        self._runner: web.AppRunner | None = None
        if data is not None:
            data.mkdir(parents=True, exist_ok=True)
        file = ":memory:" if data is None else str(data / "payments.sqlite")
        self._store = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        self._store.executescript(SCHEMA)

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen, and return the port."""
        application = web.Application()
        application.router.add_post("/v1/payment_intents", self._create)
        application.router.add_get("/v1/payment_intents/search", self._search)
        application.router.add_post("/_control/faults", partial(take_order, faults=self.faults))
        application.router.add_post("/_control/clock", self._move_clock)
        application.router.add_get("/_control/ledger", self._show_ledger)
        application.router.add_get("/_control/requests", self._show_requests)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as failure:
            await self._runner.cleanup()
            raise PortInUseError(f"Port {port} of {host} is already in use") from failure
        return int(self._runner.addresses[0][1])

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
        self._store.close()

    def ledger(self) -> list[dict[str, Any]]:
        """Return every payment that was really made."""
        rows = self._store.execute("SELECT key, intent, made FROM payments ORDER BY made, id")
        return [{"key": key, **json.loads(intent), "made": made} for key, intent, made in rows]

    def advance(self, seconds: float) -> None:
        """Move the provider's clock forward."""
        self._moved += seconds

    def _now(self) -> float:
        return time.time() + self._moved

    async def _create(self, request: web.Request) -> web.StreamResponse:
        key, body = request.headers.get("Idempotency-Key", ""), await request.text()
        self.requests.append({"key": key, "body": body, "headers": dict(request.headers)})
        fault = self.faults.next(OF_PAYMENT)
        if fault and (refused := refusal(fault)):
            return refused
        if not request.headers.get("Authorization"):
            return error(401, "invalid_request_error")
        if fault and fault.kind == "drop_before_commit":
            return hang_up(request)
        answer = await self._idempotently(key, body, fault)
        return await self._delivered(request, answer, fault)

    async def _delivered(self, request: web.Request, answer: web.Response, fault: Fault | None) -> web.StreamResponse:
        if fault and fault.kind == "drop_after_commit":
            return hang_up(request)
        if fault and fault.kind == "hang_after_commit":
            await asyncio.sleep(fault.seconds)
        if fault and fault.kind == "drip":
            return await drip(request, answer)
        return answer

    async def _idempotently(self, key: str, body: str, fault: Fault | None) -> web.Response:
        """Execute, or give the saved result of the key again."""
        self._store.execute("DELETE FROM keys WHERE used < ?", (self._now() - self._horizon,))
        saved = self._store.execute("SELECT parameters, status, body FROM keys WHERE key = ?", (key,)).fetchone()
        if saved and saved[0] != parameters(body):
            return error(400, "idempotency_error")
        if saved:
            headers = {"Idempotent-Replayed": "true"}
            return web.Response(status=saved[1], text=saved[2], headers=headers, content_type="application/json")
        if key in self._busy:
            return error(409, "idempotency_error", "idempotency_key_in_use")
        given = dict(parse_qsl(body))
        if refused := invalid(key, given):
            return refused
        if fault and fault.kind == "error_unsaved":
            return error(500, "api_error")
        with self._in_progress(key):
            if fault and fault.kind == "hang_before_commit":
                await asyncio.sleep(fault.seconds)
            return self._execute(key, body, given, fault)

    def _execute(self, key: str, body: str, given: dict[str, str], fault: Fault | None) -> web.Response:
        """Pay and save the result, both or neither, whenever this process is killed."""
        self._store.execute("BEGIN")
        answer = self._pay(key, given, fault)
        if key:
            row = (key, parameters(body), answer.status, answer.text, self._now())
            self._store.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?)", row)
        self._store.execute("COMMIT")
        return answer

    def _pay(self, key: str, given: dict[str, str], fault: Fault | None) -> web.Response:
        if fault and fault.kind == "decline":
            return error(402, "card_error", "card_declined")
        if fault and fault.kind == "error_saved":
            return error(500, "api_error")
        made = intent(key, given, self._store.execute("SELECT count(*) FROM payments").fetchone()[0])
        row = (made["id"], key, json.dumps(made), self._now())
        self._store.execute("INSERT INTO payments VALUES (?, ?, ?, ?)", row)
        if fault and fault.kind == "error_after_commit":
            return error(500, "api_error")
        return web.json_response(made)

    @contextlib.contextmanager
    def _in_progress(self, key: str) -> Any:
        self._busy.update({key} - {""})
        try:
            yield
        finally:
            self._busy.discard(key)

    async def _search(self, request: web.Request) -> web.Response:
        if not request.headers.get("Authorization"):
            return error(401, "invalid_request_error")
        if self.faults.next(OF_SEARCH):
            return error(503, "api_error")
        match = SEARCH.fullmatch(request.query.get("query", ""))
        if match is None:
            return error(400, "invalid_request_error", param="query")
        visible = self._now() - self._visibility
        found = [
            payment
            for payment in self.ledger()
            if payment["made"] <= visible and payment["metadata"].get(match[2]) == match[4]
        ]
        return web.json_response({"object": "search_result", "data": found, "has_more": False, "url": request.path})

    async def _move_clock(self, request: web.Request) -> web.Response:
        self.advance(float((await request.json())["advance"]))
        return web.json_response({"now": self._now()})

    async def _show_ledger(self, _request: web.Request) -> web.Response:
        return web.json_response(self.ledger())

    async def _show_requests(self, _request: web.Request) -> web.Response:
        return web.json_response(self.requests)


@contextlib.asynccontextmanager
async def _serving(options: argparse.Namespace) -> AsyncIterator[dict[str, str]]:
    server = PaymentServer(options.data, visibility=options.visibility)
    server.faults.rates = options.rates
    try:
        yield {"payments": f"http://127.0.0.1:{await server.open(port=options.port)}"}
    finally:
        await server.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m local.payments", description="A payment provider.")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--data", type=Path, help="folder of the ledger; without: in memory")
    parser.add_argument("--visibility", type=float, default=0.0, help="seconds until a payment shows in the search")
    rates = f"JSON of shares by kind of fault: {', '.join(sorted(KINDS))}"
    parser.add_argument("--rates", type=partial(shares, kinds=KINDS), default={}, metavar="RATES", help=rates)
    return run(_serving(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
