"""What the duties of reconcile have in common: each works batch by batch and says what each batch moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from shared.outbox import Outbox
from shared.pipeline import Pipeline

Moved = Mapping[str, int]  # how many of what, by the names of `reconcile.Sweep`
# Given the size of a batch. Each batch is a transaction of its own, safe to run many times at once and to be killed.
Duty = Callable[[Outbox, Pipeline, int], Iterator[Moved]]


def policy_of(pipeline: Pipeline) -> dict[str, Any]:
    """Return each step and its attempts, as parameters of a statement."""
    steps = pipeline.steps
    return {
        "operation_types": [step.type for step in steps],
        "steps": [step.name for step in steps],
        "attempts": [step.attempts for step in steps],
    }
