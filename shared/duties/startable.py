"""Waiting steps whose needs are all met: a safety net, for a settle queues them itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from shared.duties import Moved
from shared.outbox import Outbox
from shared.pipeline import Pipeline

log = logging.getLogger(__name__)


def batches(outbox: Outbox, _pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Queue such steps: `started`. None should ever be found, so each is worth a warning."""
    while True:
        rows = outbox.database.run("queue_startable_steps", batch=batch)
        if rows:
            log.warning("%d waiting steps had all their needs and were queued by the sweep", len(rows))
        yield {"started": len(rows)}
        if len(rows) < batch:
            return
