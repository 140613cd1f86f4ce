"""What Cloud Tasks refuses, and its defaults.

Sources: the API reference of google.cloud.tasks.v2 and cloud.google.com/tasks/docs/quotas.
"""

from __future__ import annotations

import math
import re
import time
from typing import TYPE_CHECKING, Any, Final

from google.cloud.tasks_v2 import types

from local.serving.rpc import invalid, unimplemented

if TYPE_CHECKING:
    from collections.abc import Iterable

Method = types.HttpMethod

MAX_AHEAD = 720 * 3600  # seconds that a task's schedule time may lie ahead
MAX_TASK_BYTES = 1024 * 1024
MAX_URL = 2083  # characters
DEADLINES: Final = (15.0, 1800.0)  # seconds; of an HTTP target's dispatch
DEFAULT_DEADLINE = 600  # seconds
DEFAULT_RATE, MAX_RATE = 500.0, 500.0  # dispatches a second
DEFAULT_CONCURRENT, MAX_CONCURRENT = 1000, 5000
DEFAULT_ATTEMPTS, DEFAULT_DOUBLINGS = 100, 16
DEFAULT_MIN_BACKOFF, DEFAULT_MAX_BACKOFF = 0.1, 3600.0  # seconds
WITH_BODY: Final = frozenset({Method.POST, Method.PUT, Method.PATCH})
UPDATABLE: Final = frozenset({"rate_limits", "retry_config"})

_PARENT = r"projects/[A-Za-z0-9:.-]+/locations/[a-z0-9-]+"
_LOCATION = re.compile(_PARENT, re.ASCII)
_QUEUE = re.compile(rf"{_PARENT}/queues/[A-Za-z0-9-]{{1,100}}", re.ASCII)
_TASK = re.compile(rf"{_PARENT}/queues/[A-Za-z0-9-]{{1,100}}/tasks/[A-Za-z0-9_-]{{1,500}}", re.ASCII)


def check_location(name: str) -> None:
    """Refuse a malformed location name."""
    if not _LOCATION.fullmatch(name):
        raise invalid("Invalid resource field value in the request: parent.")


def check_queue_name(name: str) -> None:
    """Refuse a malformed queue name."""
    if not _QUEUE.fullmatch(name):
        raise invalid('Queue name must be formatted: "projects/<P>/locations/<L>/queues/<Q>"')


def check_task_name(name: str, queue: str = "") -> None:
    """Refuse a malformed task name, or one of another queue than `queue`."""
    if not _TASK.fullmatch(name):
        raise invalid('Task name must be formatted: "projects/<P>/locations/<L>/queues/<Q>/tasks/<T>"')
    if queue and not name.startswith(f"{queue}/tasks/"):
        raise invalid("The queue name from request ('parent') must be the same as the queue of the named task.")


def fill_queue(queue: Any) -> None:
    """Fill in a queue's defaults and refuse settings out of bounds."""
    check_queue_name(queue.name)
    if queue.HasField("app_engine_routing_override") or queue.HasField("http_target"):
        raise unimplemented("The local Cloud Tasks supports neither App Engine nor queue-level HTTP targets.")
    limits = queue.rate_limits
    limits.max_dispatches_per_second = limits.max_dispatches_per_second or DEFAULT_RATE
    limits.max_concurrent_dispatches = limits.max_concurrent_dispatches or DEFAULT_CONCURRENT
    if not 0 < limits.max_dispatches_per_second <= MAX_RATE:
        raise invalid(f"RateLimits.maxDispatchesPerSecond must be between 0 and {MAX_RATE:g}.")
    if not 0 < limits.max_concurrent_dispatches <= MAX_CONCURRENT:
        raise invalid(f"RateLimits.maxConcurrentDispatches must be between 1 and {MAX_CONCURRENT}.")
    limits.max_burst_size = max(1, math.ceil(limits.max_dispatches_per_second))  # output only
    fill_retry(queue.retry_config)


def fill_retry(retry: Any) -> None:
    """Fill in the defaults of a retry configuration and refuse values out of bounds."""
    retry.max_attempts = retry.max_attempts or DEFAULT_ATTEMPTS
    retry.max_doublings = retry.max_doublings or DEFAULT_DOUBLINGS
    if not retry.HasField("min_backoff"):
        retry.min_backoff.FromMilliseconds(int(DEFAULT_MIN_BACKOFF * 1000))
    if not retry.HasField("max_backoff"):
        retry.max_backoff.FromSeconds(max(int(DEFAULT_MAX_BACKOFF), math.ceil(seconds(retry.min_backoff))))
    if not retry.HasField("max_retry_duration"):
        retry.max_retry_duration.FromSeconds(0)
    if retry.max_attempts < -1 or retry.max_doublings < 0 or seconds(retry.max_retry_duration) < 0:
        raise invalid("RetryConfig: max_attempts must be at least -1, the others must not be negative.")
    if not 0 <= seconds(retry.min_backoff) <= seconds(retry.max_backoff):
        raise invalid("RetryConfig: min_backoff must be between 0 and max_backoff.")


def fill_task(task: Any) -> None:
    """Fill in a task's defaults and refuse it when it is out of bounds."""
    if task.ByteSize() > MAX_TASK_BYTES:
        raise invalid(f"Task size too large: at most {MAX_TASK_BYTES} bytes.")
    if task.HasField("app_engine_http_request"):
        raise unimplemented("The local Cloud Tasks does not support App Engine targets.")
    if not task.HasField("http_request"):
        raise invalid("Task.message_type must be set.")
    _fill_request(task.http_request)
    now = time.time()
    if not task.HasField("schedule_time") or stamp_of(task.schedule_time) < now:
        set_stamp(task.schedule_time, now)
    elif stamp_of(task.schedule_time) > now + MAX_AHEAD:
        raise invalid("The Task.scheduleTime is too far in the future: at most 720 hours.")
    if not task.HasField("dispatch_deadline"):
        task.dispatch_deadline.FromSeconds(DEFAULT_DEADLINE)
    low, high = DEADLINES
    if not low <= seconds(task.dispatch_deadline) <= high:
        raise invalid("Task.dispatchDeadline must be between 15s and 30m.")
    if task.HasField("retry_config"):
        fill_retry(task.retry_config)


def _fill_request(request: Any) -> None:
    if not re.match(r"https?://[^/]", request.url) or len(request.url) > MAX_URL:
        raise invalid("HttpRequest.url must start with http:// or https:// and have at most 2083 characters.")
    if request.HasField("oauth_token"):
        raise unimplemented("The local Cloud Tasks does not support oauth_token.")
    request.http_method = request.http_method or Method.POST
    if request.body and request.http_method not in WITH_BODY:
        raise invalid("HTTP request body must be empty for this HTTP method.")


def check_mask(paths: Iterable[str]) -> None:
    """Refuse an update of a field that cannot change."""
    unknown = sorted({path.partition(".")[0] for path in paths} - UPDATABLE)
    if unknown:
        raise invalid(f"Invalid update_mask: {', '.join(unknown)}.")


def seconds(duration: Any) -> float:
    """Return a protobuf Duration in seconds."""
    return float(duration.seconds) + float(duration.nanos) / 1e9


def stamp_of(timestamp: Any) -> float:
    """Return a protobuf Timestamp as seconds since 1970."""
    return float(timestamp.seconds) + float(timestamp.nanos) / 1e9


def set_stamp(timestamp: Any, at: float) -> None:
    """Set a protobuf Timestamp to seconds since 1970, with microseconds."""
    timestamp.FromMicroseconds(int(at * 1e6))
