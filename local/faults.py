"""Misbehaviour on demand, for servers that stand for the outside world: what goes wrong next, or how often."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

DRIP = 0.2  # seconds between two bytes of a slow answer
HANG = 60.0  # seconds; longer than any client here waits


@dataclass(frozen=True)
class Fault:
    """One misbehaviour: its kind, how long a hang takes (seconds), and a Retry-After to answer with."""

    kind: str
    seconds: float = HANG
    retry_after: str = ""


@dataclass
class Faults:
    """The faults of one server: a queue for the next requests, then rates of kinds by chance from a fixed seed."""

    kinds: frozenset[str]
    rates: dict[str, float] = field(default_factory=dict)
    queue: deque[Fault] = field(default_factory=deque)
    chance: random.Random = field(default_factory=lambda: random.Random(536365))  # noqa: S311 - repeatable, not secret

    def next(self, kinds: Collection[str] | None = None) -> Fault | None:
        """Return what goes wrong with the next request, if anything does; of these kinds only, which others await."""
        wanted = self.kinds | {"none"} if kinds is None else kinds
        fault = next((fault for fault in self.queue if fault.kind in wanted), None)
        if fault is not None:
            self.queue.remove(fault)
            return None if fault.kind == "none" else fault
        rates = {kind: rate for kind, rate in self.rates.items() if kind in wanted}
        draw = self.chance.random() if rates else 1.0
        for kind, rate in rates.items():
            if draw < rate:
                return Fault(kind)
            draw -= rate
        return None

    def order(self, given: dict[str, Any]) -> None:
        """Take an order: {"next": [{"kind": …}], "rates": {kind: share}}; raises ValueError for an unknown kind."""
        faults = [Fault(**one) for one in given.get("next", [])]
        rates = {str(kind): float(rate) for kind, rate in given.get("rates", self.rates).items()}
        unknown = ({fault.kind for fault in faults} | set(rates)) - self.kinds - {"none"}
        if unknown:
            raise ValueError(f"unknown faults: {', '.join(sorted(unknown))}")
        self.queue.extend(faults)
        self.rates = rates


def shares(text: str, kinds: frozenset[str]) -> dict[str, float]:
    """Read a command's option that gives shares of kinds as JSON; raises ArgumentTypeError."""
    faults = Faults(kinds)
    try:
        faults.order({"rates": dict(json.loads(text))})
    except (ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return faults.rates


def hang_up(request: web.Request) -> web.Response:
    """Close the connection without an answer."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)  # nobody gets it


async def drip(request: web.Request, answer: web.Response) -> web.StreamResponse:
    """Answer byte by byte."""
    headers = {name: value for name, value in answer.headers.items() if name.lower() != "content-length"}
    stream = web.StreamResponse(status=answer.status, headers=headers)
    await stream.prepare(request)
    for byte in answer.body if isinstance(answer.body, bytes) else b"":
        await stream.write(bytes([byte]))
        await asyncio.sleep(DRIP)
    return stream


async def take_order(request: web.Request, faults: Faults) -> web.Response:
    """Answer a POST that orders faults."""
    try:
        faults.order(await request.json())
    except (ValueError, TypeError) as error:
        raise web.HTTPBadRequest(text=str(error)) from None
    return web.json_response({"queued": len(faults.queue), "rates": faults.rates})
