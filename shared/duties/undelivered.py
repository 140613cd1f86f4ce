"""Dispatches that nobody claims however often they are handed over: their steps need a person."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from shared.duties import Moved
from shared.outbox import UNCLAIMED_LIMIT, Outbox, provider_uses
from shared.pipeline import Pipeline

REASON = "handed over again and again for about a day, and never started: look at its function, topic or queue"

log = logging.getLogger(__name__)


def batches(outbox: Outbox, pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Exhaust each step whose row was handed over UNCLAIMED_LIMIT times without a claim: `undelivered`.

    They show in the review queue as undeliverable. What is paused, or waits for its provider, is left alone, and so
    is a step that is being claimed this moment.
    """
    while True:
        rows = outbox.database.run(
            "end_undelivered", most=UNCLAIMED_LIMIT, batch=batch, error=REASON, **provider_uses(pipeline)
        )
        for row in rows:
            log.error("undeliverable", extra={"operation_id": str(row.operation_id), "step": row.step})
        yield {"undelivered": len(rows)}
        if len(rows) < batch:
            return
