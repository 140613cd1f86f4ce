"""One circuit breaker a provider: while it gives no answers, its steps stay queued instead of failing one by one.

Counted in the database, so that all instances share it. After THRESHOLD calls in a row without an answer the circuit
opens: claims of steps that name the provider (`providers` in pipeline.yaml) answer *held*. When the pause is over one
step at a time may try; its success closes the circuit, its failure opens it for twice as long.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import datetime

from shared.database import Database
from shared.errors import EchoproofError
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

THRESHOLD = 10  # calls in a row: a provider that fails one call in five gets there once in ten million calls
SHORTEST = 15.0  # seconds that the circuit is open at first
LONGEST = 300.0  # seconds at most: a provider that is back is noticed within five minutes and a tick

log = logging.getLogger(__name__)


def failed(database: Database, provider: str) -> None:
    """Count a call that had no answer; never raises, the circuit only spares attempts."""
    try:
        row = database.run(
            "count_provider_failure", provider=provider, threshold=THRESHOLD, shortest=SHORTEST, longest=LONGEST
        )[0]
    except EchoproofError as error:
        log.warning("provider failure not counted: %s", error)
        return
    if row.open:
        log.error("circuit open: its steps wait", extra={"provider": provider, "openings": row.openings})


def answered(database: Database, provider: str) -> None:
    """Forget a provider's failures, because it has answered; never raises."""
    try:
        closed = database.run("close_circuit", provider=provider)
    except EchoproofError as error:
        log.warning("provider's answer not counted: %s", error)
        return
    if closed:
        log.info("provider answers again", extra={"provider": provider})


def probe(outbox: Outbox, pipeline: Pipeline) -> int:
    """Publish the oldest waiting dispatch of each step whose provider may be tried again; return how many."""
    uses = [(step.type, step.name, provider) for step in pipeline.steps for provider in step.providers]
    if not uses:
        return 0
    types, steps, providers = (list(column) for column in zip(*uses, strict=True))
    rows = outbox.database.run("lease_probes", operation_types=types, steps=steps, providers=providers)
    outbox.publish_leased([Dispatch(*row) for row in rows])
    return len(rows)


@dataclass(frozen=True)
class Circuit:
    """A provider that has not answered lately; `open_until` is None while its steps still run."""

    provider: str
    failures: int
    openings: int
    opened_at: datetime | None
    open_until: datetime | None


def listed(database: Database) -> list[Circuit]:
    """Return every circuit with failures, open ones first."""
    return [Circuit(*row) for row in database.run("list_circuits", repeat_if_lost=True)]
