"""Steps whose lease ran out: their process died or hung, and another attempt begins, or the step is exhausted."""

from __future__ import annotations

from collections.abc import Iterator

from shared.duties import Moved, policy_of
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch


def batches(outbox: Outbox, pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Give each such step its next dispatch, or end it when its budget is spent: `requeued`, `exhausted`.

    A step that finished or was claimed again in the meantime is left alone: its state, fence and lease are read again
    under its row lock.
    """
    which = {"batch": batch, "writer_lease": outbox.writer_lease, **policy_of(pipeline)}
    while True:
        rows = outbox.database.run("move_expired_leases", **which)
        again = [row for row in rows if row.state == "queued"]
        outbox.publish_at_once([Dispatch(r.operation_id, r.type, r.step, r.dispatch, r.traceparent) for r in again])
        yield {"requeued": len(again), "exhausted": len(rows) - len(again)}
        if len(rows) < batch:
            return
