"""When a failed task is tried again, and when it is given up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from local.cloudtasks.limits import seconds, stamp_of

if TYPE_CHECKING:
    from collections.abc import Mapping


def backoff(retry: Any, retries: int) -> float:
    """Return the seconds before retry number `retries` (from 1).

    It doubles from min_backoff `max_doublings` times, then grows by the last doubled interval each time, and
    never exceeds max_backoff: 10, 20, 40, 80, 160, 240, 300 for min 10, max 300, doublings 3 (API reference).
    """
    doublings = min(retries - 1, int(retry.max_doublings), 60)
    linear = max(0, retries - 1 - int(retry.max_doublings))
    interval = seconds(retry.min_backoff) * 2.0**doublings * (1 + linear)
    return min(interval, seconds(retry.max_backoff))


def exhausted(retry: Any, task: Any, now: float) -> bool:
    """Say whether a failed task is given up: when both limits that are set are reached (API reference).

    max_attempts -1 and max_retry_duration 0 each mean "no limit"; the time runs from the first attempt.
    """
    unlimited_attempts, unlimited_time = retry.max_attempts < 0, seconds(retry.max_retry_duration) == 0
    if unlimited_attempts and unlimited_time:
        return False
    age = now - stamp_of(task.first_attempt.dispatch_time)
    attempts_spent = unlimited_attempts or task.dispatch_count >= retry.max_attempts
    time_spent = unlimited_time or age >= seconds(retry.max_retry_duration)
    return attempts_spent and time_spent


def asked_for(headers: Mapping[str, str]) -> float:
    """Return the seconds of an answer's Retry-After header; 0 when absent or a date."""
    value = headers.get("Retry-After", "")
    return float(value) if value.isascii() and value.isdecimal() else 0.0
