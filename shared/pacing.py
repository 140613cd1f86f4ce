"""Turns of paced steps: handlers of one function start a fixed time apart, whatever the queue lets through at once.

Cloud Tasks' rate is a token bucket: after a pause it dispatches as many at once as it does in a second. So each attempt
of a step with `pacing.per_second` takes the function's next turn in the database, and waits for it.
"""

from __future__ import annotations

import math
import time

from shared.database import Database
from shared.errors import RetryLater
from shared.pipeline import Pacing, Step

SLACK = 1.05  # times the exact interval: a call that reaches the provider a little late does not meet the next one
LONGEST = 10.0  # seconds that an attempt waits for its turn; a longer queue waits outside, uncharged


def wait_for_turn(database: Database, policy: Step) -> None:
    """Return when a handler of this step may start; at once for a step that is not paced.

    Raises RetryLater when the next turn is too far away.
    """
    if policy.pacing is None or policy.pacing.per_second is None:
        return
    interval = SLACK / policy.pacing.per_second
    turns = database.run("take_turn", function=policy.function, interval=interval, longest=LONGEST)
    if not turns:
        raise RetryLater(LONGEST, "the next turns of the paced step are taken")
    time.sleep(max(turns[0].seconds, 0.0))


def at_once(pacing: Pacing) -> int:
    """Return how many dispatches of a paced queue may be under way: as given, else so many as find a turn in time."""
    if pacing.concurrent is not None:
        return pacing.concurrent
    if pacing.per_second is None:
        return 1000  # Cloud Tasks' own default
    return max(1, math.floor(pacing.per_second * LONGEST / (2 * SLACK)))
