"""Unresolved steps: each is queued again to look its open effects up, bounded, with growing pauses."""

from __future__ import annotations

from collections.abc import Iterator

from shared.duties import Moved, policy_of
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

LOOKUPS = 12  # of one unresolved step: with the pauses below about twenty hours, then it waits for a person alone
PAUSE = 30.0  # seconds before the first; doubles each time
LONGEST_PAUSE = 21_600.0  # seconds: six hours


def batches(outbox: Outbox, pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Queue unresolved steps whose pause is over: `looked_up`.

    The step's own function makes the lookup, as the holder of its lease.
    """
    which = {"batch": batch, "writer_lease": outbox.writer_lease, **policy_of(pipeline)}
    while True:
        rows = outbox.database.run("queue_lookups", most=LOOKUPS, shortest=PAUSE, longest=LONGEST_PAUSE, **which)
        outbox.publish_at_once([Dispatch(*row) for row in rows])
        yield {"looked_up": len(rows)}
        if len(rows) < batch:
            return
