"""How long the console's pages take at a hundred thousand operations and five thousand dead letters."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from local.postgres import temporary
from shared.database import connector
from shared.migrate import migrate
from tests.console.kit import ADA, Iap, Service, service_for
from tests.console.scenes import PIPELINE_FILE, fill
from tests.console.screenshots import addresses

OPERATIONS, BAD, HOURS = 100_000, 5_000, 24 * 30.0
ROUNDS = 20
AIM = 300.0  # ms
MORE = {
    "operations by key": "/operations?key=order-536370",
    "operations of a tenant that need a review": "/operations?tenant=branch&state=needs_review",
    "operations of a type": "/operations?type=invoice.generate",
    "operations, nothing found": "/operations?tenant=nobody&state=succeeded",
    "dead letters of a cause and tenant": "/dead-letters?cause=unresolved&tenant=branch",
    "dead letters, nothing found": "/dead-letters?type=report.generate&cause=unresolved",
    "dead letters, all": "/dead-letters?state=all",
}
Times = Mapping[str, list[float]]


def measure() -> Times:
    """Return each page's answer times in milliseconds, through the function's own process."""
    server, data = temporary(fsync="on")
    scratch = Path(tempfile.mkdtemp(prefix="echoproof-console-"))
    iap = Iap()
    keys = iap.server()
    keys.start()
    try:
        with server:
            migrate(connector(server.url))
            fill(server.url, OPERATIONS, BAD, HOURS)
            service = service_for(server.url, iap, keys.url, PIPELINE_FILE, scratch)
            try:
                return {name: _times(service, address) for name, address in (addresses(server.url) | MORE).items()}
            finally:
                service.stop()
    finally:
        keys.stop()
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def _times(service: Service, address: str) -> list[float]:
    service.get(address, ADA)  # the first of an instance connects and compiles: half a second, once
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        service.get(address, ADA)
        times.append(1000 * (time.perf_counter() - started))
    return times


def show(times: Times) -> str:
    """Write the table."""
    lines = [
        f"console at {OPERATIONS:,} operations and {BAD:,} dead letters, {ROUNDS} requests each (aim: {AIM:.0f} ms)"
    ]
    for name, found in times.items():
        late = "" if max(found) < AIM else "  above the aim"
        lines.append(f"  {name:42} median {median(found):6.1f} ms, slowest {max(found):6.1f} ms{late}")
    return "\n".join(lines)


def document(times: Times) -> dict[str, Any]:
    """Return the numbers for a file."""
    return {name: {"median_ms": median(found), "slowest_ms": max(found)} for name, found in times.items()}
