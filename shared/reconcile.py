"""Reconcile: moves only what time has decided. Each duty is small, batched, and safe to run many times at once.

The duties take turns, a batch each, so that one with a large backlog keeps no other from its work within a tick.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared import admission
from shared.duties import Duty, Moved, deadlines, expired_leases, lookups, retention, startable, undelivered
from shared.errors import EchoproofError
from shared.outbox import Outbox
from shared.pipeline import Pipeline

BATCH = 200  # rows a statement: locks are held for milliseconds
TIME_LIMIT = 45.0  # seconds a tick may go on: the next one comes after a minute
# Admission comes after what may end operations, so that what waits behind these starts in the same tick.
DUTIES: tuple[Duty, ...] = (
    expired_leases.batches,
    undelivered.batches,
    deadlines.batches,
    lookups.batches,
    startable.batches,
    admission.batches,
    retention.batches,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sweep:
    """What one run moved, and the pulse of effects and dead letters after it.

    `unfinished` is how many duties had no more time.
    """

    requeued: int
    exhausted: int
    undelivered: int
    overdue: int
    looked_up: int
    started: int
    admitted: int
    pruned: int
    forgotten: int
    unfinished: int
    unknown_effects: int
    oldest_unknown_age: float
    open_dead_letters: int


def run_once(
    outbox: Outbox,
    pipeline: Pipeline,
    batch: int = BATCH,
    time_limit: float = TIME_LIMIT,
    duties: Sequence[Duty] = DUTIES,
) -> Sweep:
    """Run every duty until nothing is left to do or the time is up.

    A duty that fails does not keep the others from theirs; its error is raised at the end.
    """
    ends = time.monotonic() + time_limit
    turns = [duty(outbox, pipeline, batch) for duty in duties]
    moved: Counter[str] = Counter()
    errors: list[EchoproofError] = []
    while turns and time.monotonic() < ends:
        turns = [turn for turn in turns if _took(turn, moved, errors)]
    unknown, age = outbox.database.run("effects_pulse")[0]
    counts = {name: moved[name] for name in Sweep.__dataclass_fields__}
    counts |= {"unfinished": len(turns), "unknown_effects": unknown, "open_dead_letters": _open_letters(outbox)}
    sweep = Sweep(**counts | {"oldest_unknown_age": age})
    log.info("reconcile sweep", extra={"sweep": vars(sweep)})
    if errors:
        raise errors[0]
    return sweep


def _open_letters(outbox: Outbox) -> int:
    return sum(row.open for row in outbox.database.run("count_open_dead_letters"))


def _took(turn: Iterator[Moved], moved: Counter[str], errors: list[EchoproofError]) -> bool:
    """Let a duty do its next batch; False when it is at its end."""
    try:
        moved.update(next(turn))
    except StopIteration:
        return False
    except EchoproofError as error:
        log.exception("a duty of reconcile failed")
        errors.append(error)
        return False
    return True
