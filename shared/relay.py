"""The relay: hands over every outbox row that is due and not yet claimed, and is the only guarantee that it is.

Many may run at once: rows are leased with SKIP LOCKED, handed over with no transaction open, and die in the claim.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from shared import circuits, progress
from shared.database import Database
from shared.outbox import UNCLAIMED_LIMIT, Outbox, provider_uses
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

BATCH = 1000  # rows a lease and messages an RPC: Pub/Sub's limit
TIME_LIMIT = 45.0  # seconds a tick may go on: the next one comes after a minute

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """What one run of the relay did, and the outbox's pulse after it (ages in seconds).

    `unpublished` rows are due to be handed over; `unclaimed` ones were, and their steps have not started since they
    are due; `held` ones belong to what is paused or waits for its provider, and are in neither.
    """

    published: int
    failed: int
    unpublished: int
    unclaimed: int
    oldest_age: float
    held: int


def lease_due_rows(
    database: Database, pipeline: Pipeline, batch: int = BATCH, away: Collection[str] = ()
) -> list[Dispatch]:
    """Lease up to `batch` due rows to this relay, but for lanes (`outbox.lane_of`) that are away.

    What is paused or held is left alone, and so is what only waits in a backlog.
    """
    paced = [f"{step.type}/{step.name}" for step in pipeline.steps if step.transport == "tasks"]
    rows = database.run(
        "lease_due_rows", batch=batch, away=sorted(away), most=UNCLAIMED_LIMIT, paced=paced, **provider_uses(pipeline)
    )[0].dispatches
    return [_dispatch(*row) for row in rows]


def _dispatch(
    operation_id: str, kind: str, step: str, dispatch: int, trace: str | None, due_at: str | None, published: int
) -> Dispatch:
    due = None if due_at is None else datetime.fromisoformat(due_at)
    return Dispatch(UUID(operation_id), kind, step, dispatch, trace, due, published)


def run_once(outbox: Outbox, time_limit: float = TIME_LIMIT, batch: int = BATCH) -> Tick:
    """Hand over due rows until there are none or the time is up; safe to run many at once.

    The rows of a topic or queue that does not answer are left for the next tick and hold nothing else up.
    """
    started = time.monotonic()
    progress.prepare(outbox.database, outbox.pipeline)
    published = failed = 0
    away: frozenset[str] = frozenset()
    while time.monotonic() - started < time_limit:
        due = lease_due_rows(outbox.database, outbox.pipeline, batch, away)
        sent = outbox.publish_leased(due)
        published, failed, away = published + sent.published, failed + sent.failed, away | sent.away
        if len(due) < batch:
            break
    published += circuits.probe(outbox, outbox.pipeline)
    pulse = outbox.database.run("outbox_pulse", **provider_uses(outbox.pipeline))[0]
    tick = Tick(published, failed, *pulse)
    log.info("relay tick", extra={"tick": vars(tick)})
    return tick
