"""Latency without load: from the 202 to the last commit of three steps that do nothing, on the local stack."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles

from benchmarks.bench import HERE, TENANT, TYPE
from local.client import Client
from local.postgres import free_port
from local.stack import PLUMBING, ROOT, Stack
from shared import operations
from shared.database import Database, connector

OPERATIONS = 200
WARM_UP = 20  # the first of each function connect and prepare
PAUSE = 0.05  # seconds between two: nothing else is under way
POLL = 0.002  # seconds; the latency is over by so much at most
PATIENCE = 20.0  # seconds


@dataclass(frozen=True)
class Latency:
    """Milliseconds over `operations`: of the request, and from its 202 to the last step's commit."""

    operations: int
    request_median: float
    request_p95: float
    finish_median: float
    finish_p95: float


def measure() -> Latency:
    """Start the stack, send one operation after the other, and see in the database when each is finished."""
    folder = Path(tempfile.mkdtemp(prefix="echoproof-latency-"))
    folder.chmod(0o755)  # PostgreSQL runs as another user when this runs as root
    try:
        with Stack(
            folder / "data",
            port=free_port(),
            pipeline_file=HERE / "pipeline.yaml",
            functions=_functions(folder / "functions"),
        ) as stack:
            return _measured(stack)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show(latency: Latency) -> str:
    """Say it in two lines."""
    return (
        f"Latency without load, {latency.operations} operations of three steps that do nothing, in ms\n"
        f"  request to 202: median {latency.request_median:.1f}, p95 {latency.request_p95:.1f};"
        f" 202 to the last commit: median {latency.finish_median:.1f}, p95 {latency.finish_p95:.1f}"
    )


def document(latency: Latency) -> dict[str, float]:
    """The same as plain values."""
    return asdict(latency)


def _functions(folder: Path) -> Path:
    shutil.copytree(HERE / "functions", folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PLUMBING:
        (folder / name).symlink_to(ROOT / "functions" / name)
    return folder


def _measured(stack: Stack) -> Latency:
    client = Client(stack.addresses.intake, TENANT)
    database = Database(connector(stack.addresses.database))
    requests, finishes = [], []
    try:
        for number in range(WARM_UP + OPERATIONS):
            asked = time.time()
            submitted = client.submit({"type": TYPE, "input": {"number": number}}, f"latency-{number}")
            accepted = time.time()
            requests.append(accepted - asked)
            finishes.append(_finished(database, submitted.operation_id) - accepted)
            time.sleep(PAUSE)
    finally:
        database.close()
    return Latency(OPERATIONS, *_figures(requests[WARM_UP:]), *_figures(finishes[WARM_UP:]))


def _finished(database: Database, operation_id: str) -> float:
    """Wait for the operation's end and return when it was seen: at most a poll after the commit."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        (found,) = database.run("read_operation", operation_id=operation_id, tenant=TENANT)
        if found.state in operations.FINAL:
            return time.time()
        time.sleep(POLL)
    raise TimeoutError(f"an operation has not finished within {PATIENCE:g} s")


def _figures(seconds: list[float]) -> tuple[float, float]:
    return median(seconds) * 1000, quantiles(seconds, n=20)[-1] * 1000
