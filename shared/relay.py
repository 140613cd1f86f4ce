"""The relay: publishes every outbox row that is due and not yet claimed, and is the only guarantee that it is.

Many may run at once: rows are leased with SKIP LOCKED, published with no transaction open, and die in the claim.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from shared.database import Database
from shared.outbox import Outbox
from shared.publisher import Dispatch

BATCH = 1000  # rows a lease and messages an RPC: Pub/Sub's limit
TIME_LIMIT = 45.0  # seconds a tick may go on: the next one comes after a minute

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Tick:
    """What one run of the relay did, and the outbox's pulse after it (ages in seconds)."""

    published: int
    failed: int
    unpublished: int
    unclaimed: int
    oldest_age: float


def lease_due_rows(database: Database, batch: int = BATCH, away: Collection[str] = ()) -> list[Dispatch]:
    """Lease up to `batch` due rows to this relay, but for the steps (`type/step`) whose topics are away."""
    rows = database.run("lease_due_rows", batch=batch, away=sorted(away))[0].dispatches
    return [Dispatch(UUID(operation_id), *rest) for operation_id, *rest in rows]


def run_once(outbox: Outbox, time_limit: float = TIME_LIMIT, batch: int = BATCH) -> Tick:
    """Publish due rows until there are none or the time is up; safe to run many at once.

    The rows of a topic that does not answer are left for the next tick and hold nothing else up.
    """
    started = time.monotonic()
    published = failed = 0
    away: frozenset[str] = frozenset()
    while time.monotonic() - started < time_limit:
        due = lease_due_rows(outbox.database, batch, away)
        sent = outbox.publish_leased(due)
        published, failed, away = published + sent.published, failed + sent.failed, away | sent.away
        if len(due) < batch:
            break
    pulse = outbox.database.run("outbox_pulse")[0]
    tick = Tick(published, failed, *pulse)
    log.info("relay tick", extra={"tick": vars(tick)})
    return tick
