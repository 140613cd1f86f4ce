"""When the next attempt is due, and how long a statement is repeated that the database could not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import Random, SystemRandom
from typing import TypeVar

from shared.database_errors import PASSING
from shared.pipeline import Backoff

T = TypeVar("T")

# The one rule for waits that a provider or a handler asked for: not sooner than a second, because "at once" must not
# become a busy loop, and not later than an hour, because waits are counted and somebody should look within days.
SHORTEST_WAIT = timedelta(seconds=1)
LONGEST_WAIT = timedelta(hours=1)
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0  # seconds between statements to a database that is away; it restarts in one
_MOST_DOUBLINGS = 40  # a second doubled so often is 35,000 years, and still a timedelta's worth of float


def backoff(policy: Backoff, failures: int, random: Random) -> timedelta:
    """Return the wait before the next attempt: exponential, with full jitter.

    Uniform between `policy.min` and the lesser of `policy.max` and `policy.min` doubled once for each of
    `failures` (less than one counts as one). Jitter keeps the steps that one outage has failed from coming
    back together.
    """
    shortest, longest = policy.min.total_seconds(), policy.max.total_seconds()
    most = min(longest, shortest * 2.0 ** min(max(failures, 1), _MOST_DOUBLINGS))
    return timedelta(seconds=random.uniform(shortest, max(most, shortest)))


def parse_retry_after(value: str | None, now: datetime) -> timedelta | None:
    """Read a Retry-After header (RFC 9110 §10.2.3: seconds, or an HTTP date), clamped to 1 s – 1 h.

    `now` is an aware time. None when the header is absent or neither.
    """
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        # Nine digits are already far beyond the clamp, and a timedelta cannot hold many more.
        return clamp(timedelta(seconds=int(text) if len(text) < 10 else 10**9))
    try:
        then = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return clamp((then if then.tzinfo else then.replace(tzinfo=UTC)) - now)


def answered_at(date: str | None) -> datetime:
    """Return when an answer was made, by its Date header: the clock that its Retry-After was read from.

    Without one that can be read, by the clock of this process.
    """
    try:
        then = parsedate_to_datetime(date or "")
    except (ValueError, TypeError, IndexError, OverflowError):
        return datetime.now(UTC)
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def clamp(wait: timedelta) -> timedelta:
    """Return a wait that was asked for, within `SHORTEST_WAIT` and `LONGEST_WAIT`."""
    return min(max(wait, SHORTEST_WAIT), LONGEST_WAIT)


def patiently(call: Callable[[], T], patience: float) -> T:
    """Repeat a call that finds its own earlier work while the database is away, for `patience` seconds.

    Raises the last error (UnavailableError, or StatementTimeoutError for a lock that stayed taken) when that is over;
    every other error at once.
    """
    until = time.monotonic() + patience
    pause = FIRST_PAUSE
    while True:
        try:
            return call()
        except PASSING:
            if time.monotonic() + pause >= until:
                raise
        time.sleep(SystemRandom().uniform(pause / 2, pause))
        pause = min(2 * pause, LONGEST_PAUSE)
