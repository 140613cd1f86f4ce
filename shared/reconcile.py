"""Reconcile: moves only what time has decided. Each duty is small, batched, and safe to run many times at once."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from shared.database import Database
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

LOOKUPS = 12  # of one unresolved step: with the pauses below about twenty hours, then it waits for a person alone
LOOKUP_PAUSE = 30.0  # seconds before the first; doubles each time
LONGEST_LOOKUP_PAUSE = 21_600.0  # seconds: six hours
BATCH = 200  # rows a statement: locks are held for milliseconds

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """What one run moved."""

    requeued: int
    exhausted: int
    started: int
    looked_up: int
    unknown_effects: int
    oldest_unknown_age: float


def run_once(outbox: Outbox, pipeline: Pipeline, batch: int = BATCH) -> Sweep:
    """Run every duty until nothing is left to do."""
    requeued, exhausted = move_expired_leases(outbox, pipeline, batch)
    looked_up = queue_lookups(outbox, pipeline, batch)
    started = queue_startable_steps(outbox.database, batch)
    unknown, age = outbox.database.run("effects_pulse")[0]
    sweep = Sweep(requeued, exhausted, started, looked_up, unknown, age)
    log.info("reconcile sweep", extra={"sweep": vars(sweep)})
    return sweep


def move_expired_leases(outbox: Outbox, pipeline: Pipeline, batch: int = BATCH) -> tuple[int, int]:
    """Give each step whose lease ran out its next dispatch, or end it when its budget is spent.

    Returns how many were queued again and how many exhausted. A step that finished or was claimed again in the
    meantime is left alone: its state, fence and lease are read again under its row lock.
    """
    requeued = exhausted = 0
    while True:
        rows = outbox.database.run(
            "move_expired_leases", batch=batch, writer_lease=outbox.writer_lease, **_policy(pipeline)
        )
        again = [row for row in rows if row.state == "queued"]
        outbox.publish_at_once([Dispatch(r.operation_id, r.type, r.step, r.dispatch, r.traceparent) for r in again])
        requeued, exhausted = requeued + len(again), exhausted + len(rows) - len(again)
        if len(rows) < batch:
            return requeued, exhausted


def queue_lookups(outbox: Outbox, pipeline: Pipeline, batch: int = BATCH) -> int:
    """Queue unresolved steps so that they look their open effects up again; bounded, with growing pauses.

    The step's own function makes the lookup, as the holder of its lease. Returns how many were queued.
    """
    rows = outbox.database.run(
        "queue_lookups",
        batch=batch,
        writer_lease=outbox.writer_lease,
        most=LOOKUPS,
        shortest=LOOKUP_PAUSE,
        longest=LONGEST_LOOKUP_PAUSE,
        **_policy(pipeline),
    )
    outbox.publish_at_once([Dispatch(*row) for row in rows])
    return len(rows)


def queue_startable_steps(database: Database, batch: int = BATCH) -> int:
    """Queue waiting steps whose needs are all met; none should ever be found, so each is worth a warning."""
    rows = database.run("queue_startable_steps", batch=batch)
    if rows:
        log.warning("%d waiting steps had all their needs and were queued by the sweep", len(rows))
    return len(rows)


def _policy(pipeline: Pipeline) -> dict[str, Any]:
    steps = pipeline.steps
    return {
        "operation_types": [step.type for step in steps],
        "steps": [step.name for step in steps],
        "attempts": [step.attempts for step in steps],
    }
