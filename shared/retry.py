"""When the next attempt is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from random import Random

from shared.pipeline import Backoff

SHORTEST_WAIT = timedelta(seconds=1)  # a provider's "at once" must not become a busy loop
LONGEST_WAIT = timedelta(hours=1)  # ask a provider again within the hour, whatever it said; waits are counted
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
        return _clamp(timedelta(seconds=int(text) if len(text) < 10 else 10**9))
    try:
        then = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return _clamp((then if then.tzinfo else then.replace(tzinfo=UTC)) - now)


def _clamp(wait: timedelta) -> timedelta:
    return min(max(wait, SHORTEST_WAIT), LONGEST_WAIT)
