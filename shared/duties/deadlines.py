"""Deadlines that have passed: an operation's, and a step's own since it was first due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shared.duties import Moved
from shared.outbox import Outbox
from shared.pipeline import Pipeline


def batches(outbox: Outbox, pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Exhaust queued steps that may not start any more, those of operations that still waited included: `overdue`.

    A claim would end them, too, when their message comes; a step that runs ends by itself, and one that is queued to
    look up an open effect does so.
    """
    while len(outbox.database.run("admit_overdue_operations", batch=batch)) == batch:
        yield {}
    late = [(step.type, step.name, step.deadline) for step in pipeline.steps if step.deadline is not None]
    which: dict[str, Any] = {
        "operation_types": [type_ for type_, _, _ in late],
        "steps": [name for _, name, _ in late],
        "deadlines": [deadline.total_seconds() for _, _, deadline in late],
    }
    while True:
        ended = len(outbox.database.run("end_overdue_steps", batch=batch, **which))
        yield {"overdue": ended}
        if ended < batch:
            return
