"""The main job on real orders, with everything that goes wrong in between, and the proof that it did no harm.

Orders become invoices; every tenth is submitted twice, every twentieth by several callers at the same moment; step
processes are killed with SIGKILL while they work, and Pub/Sub is away for a while.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from local import proof
from local.client import Client
from local.servers import BUCKET
from local.stack import ROOT, Stack
from shared.database import Database, connector
from shared.errors import EchoproofError, UnavailableError
from shared.invoicing.orderfile import read_orders
from shared.invoicing.orders import Operation, Rejection, classify
from shared.invoicing.selection import choose, report_operations
from shared.operations import RESTING

TENANT = "gift-shop"
SUBMITTERS = 8  # threads that submit
SAME_TIME = 3  # callers that submit a twentieth of the operations at the same moment
POLL_EVERY = 0.5  # seconds between two looks at the database
SUBMIT_TRIES = 20  # of one submission while intake is away
DATA = ROOT.parent / "shared" / "data" / "online-retail"
EXCERPT = ROOT / "examples" / "orders-excerpt.csv"


@dataclass(frozen=True)
class Faults:
    """What is broken on purpose: which functions are killed at which share of finished invoices, and the outage."""

    kills: tuple[tuple[str, float], ...] = (("invoice_render", 0.1), ("invoice_notify", 0.2), ("invoice_record", 0.3))
    outage_at: float = 0.35
    outage: float = 20.0  # seconds without Pub/Sub


# Shares of the payment provider's answers: lost after it has paid; 500 after it has paid, or before it did anything.
PAYMENT_FAULTS = {"drop_after_commit": 0.05, "error_after_commit": 0.05, "error_unsaved": 0.05}


@dataclass
class Progress:
    """Where the run stands, for whoever shows it."""

    phase: str = "starting"
    total: int = 0
    submitted: int = 0
    duplicates: int = 0
    states: Counter[str] = field(default_factory=Counter)
    events: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """The outcome: every check of the proof, how attempts ended, what was refused, and how long it took (seconds)."""

    checks: list[proof.Check]
    attempts: dict[str, int]
    rejections: list[Rejection]
    seconds: float
    source: str

    @property
    def holds(self) -> bool:
        """Whether everything was proven."""
        return all(check.holds for check in self.checks)


class DemoTimeoutError(EchoproofError):
    """The operations did not finish in time."""


class Demo:
    """One run against a stack that is up. `show` is called often, from this thread, with the progress."""

    def __init__(self, stack: Stack, operations: int, faults: Faults, show: Callable[[Progress], None]) -> None:
        self._stack = stack
        self._count = operations
        self._faults = faults
        self._show = show
        self.progress = Progress()
        self._database = Database(connector(stack.addresses.database), size=2)
        self._keys: dict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def run(self, timeout: float = 300) -> Report:
        """Run to the end and return the report; raises DemoTimeoutError, or PartFailedError when a server died."""
        started = time.monotonic()
        deadline = started + timeout
        paths, source = order_files()
        orders = classify(read_orders(paths))
        chosen = choose(orders.operations, self._count)
        reports = list(report_operations(chosen))
        self.progress.total = len(chosen) + len(reports)
        self._invoices(chosen, deadline)
        self._submit_all([(report["key"], report["body"]) for report in reports], "reports")
        self._wait(self.progress.total, deadline)
        self.progress.phase = "proof"
        self._show(self.progress)
        checks = proof.prove(self._database, self._world(), TENANT, self._keys)
        attempts = {row.outcome: row.attempts for row in self._database.run("prove_attempts", tenant=TENANT)}
        self._database.close()
        return Report(checks, attempts, orders.rejections, time.monotonic() - started, source)

    def _world(self) -> proof.World:
        found = self._stack.addresses
        return proof.World(
            self._stack.objects_url, BUCKET, found.sent_log or "", found.payments or "", found.receiver or ""
        )

    def _invoices(self, chosen: list[Operation], deadline: float) -> None:
        submitting = threading.Thread(
            target=self._submit_all, args=([(one.key, one.body) for one in chosen], "invoices"), daemon=True
        )
        submitting.start()

        def done(share: float) -> None:
            self._wait(int(share * len(chosen)), deadline)

        for function, share in self._faults.kills:
            done(share)
            self._stack.parts[function].kill()
            self._event(f"SIGKILL {function}")
        done(self._faults.outage_at)
        if self._faults.outage:
            self._outage()
        submitting.join()
        self._wait(len(chosen), deadline)

    def _outage(self) -> None:
        self._event(f"Pub/Sub away for {self._faults.outage:.0f} s")
        self._stack.hold_down("cloud")
        until = time.monotonic() + self._faults.outage
        while time.monotonic() < until:
            self._look()
            time.sleep(POLL_EVERY)
        self._stack.bring_up("cloud")
        self._event("Pub/Sub is back")

    def _submit_all(self, submissions: Iterable[tuple[str, dict[str, Any]]], phase: str) -> None:
        self.progress.phase = phase
        with ThreadPoolExecutor(SUBMITTERS) as pool:
            futures = []
            for number, (key, body) in enumerate(submissions):
                if number % 20 == 0:  # several callers at the same moment
                    futures += [pool.submit(self._submit, key, body) for _ in range(SAME_TIME)]
                else:
                    twice = number % 10 == 0
                    futures.append(pool.submit(self._submit_twice if twice else self._submit, key, body))
            for future in futures:
                future.result()

    def _submit_twice(self, key: str, body: dict[str, Any]) -> None:
        self._submit(key, body)
        self._submit(key, body)

    def _submit(self, key: str, body: dict[str, Any]) -> None:
        """Submit as a careful application does: the same key again until there is an answer."""
        client = _client_of_thread(self._stack.addresses.intake)
        for remaining in reversed(range(SUBMIT_TRIES)):
            try:
                submitted = client.submit(body, key)
            except UnavailableError:
                if not remaining:
                    raise
                time.sleep(0.5)
            else:
                with self._lock:
                    self._keys[body["type"]].add(key)
                    self.progress.submitted += 1
                    self.progress.duplicates += not submitted.new
                return

    def _wait(self, count: int, deadline: float) -> None:
        while self._look() < count:
            if self._stack.failure is not None:
                raise self._stack.failure
            if time.monotonic() > deadline:
                raise DemoTimeoutError(f"not finished in time: {dict(self.progress.states)}")
            time.sleep(POLL_EVERY)

    def _look(self) -> int:
        """Read the states, show them, and return how many operations have come to rest."""
        states: Counter[str] = Counter()
        for row in self._database.run("count_states", tenant=TENANT, repeat_if_lost=True):
            states[row.state] += row.operations
        self.progress.states = states
        self._show(self.progress)
        return sum(count for state, count in states.items() if state in RESTING)

    def _event(self, text: str) -> None:
        self.progress.events.append(text)
        self._show(self.progress)


_local = threading.local()


def _client_of_thread(url: str) -> Client:
    if not hasattr(_local, "client"):
        _local.client = Client(url, TENANT)
    client: Client = _local.client
    return client


def order_files() -> tuple[list[Path], str]:
    """Return the files of orders, and what to call them: the whole data set beside the project, or the excerpt."""
    found = sorted(DATA.glob("*.csv*")) if DATA.is_dir() else []
    return (found, "the whole data set") if found else ([EXCERPT], "the excerpt in examples/")
