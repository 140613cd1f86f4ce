"""One queue's dispatching: due tasks, the token bucket, requests in flight, and what their answers mean."""

from __future__ import annotations

import asyncio
import heapq
import time
from typing import TYPE_CHECKING, Any, Final

from google.rpc import code_pb2

from local.cloudtasks import retrying
from local.cloudtasks.limits import Method, seconds, set_stamp, stamp_of
from local.cloudtasks.store import Queue

if TYPE_CHECKING:
    from local.cloudtasks.store import Store
    from local.serving.calls import Answer, Caller
    from local.signing import Signer

DISK_RETRY = 5.0  # seconds
MAX_AGE = 31 * 86400  # seconds; Cloud Tasks deletes an older task, whatever its retry settings
_CODES: Final = {
    400: code_pb2.INVALID_ARGUMENT,
    401: code_pb2.UNAUTHENTICATED,
    403: code_pb2.PERMISSION_DENIED,
    404: code_pb2.NOT_FOUND,
    409: code_pb2.ABORTED,
    429: code_pb2.RESOURCE_EXHAUSTED,
    500: code_pb2.INTERNAL,
    503: code_pb2.UNAVAILABLE,
    504: code_pb2.DEADLINE_EXCEEDED,
}


class Bucket:
    """A token bucket: `rate` tokens a second, at most `size` of them, full at the start."""

    def __init__(self, rate: float, size: float) -> None:
        self.rate, self.size = rate, size
        self._tokens, self._filled = size, time.monotonic()

    def wait(self) -> float:
        """Return the seconds until a token is there, 0 when one is."""
        now = time.monotonic()
        self._tokens = min(self.size, self._tokens + (now - self._filled) * self.rate)
        self._filled = now
        return max(0.0, (1.0 - self._tokens) / self.rate)

    def take(self) -> None:
        """Remove a token."""
        self._tokens -= 1.0


class Dispatcher:
    """Sends a queue's tasks when they are due, in the order of their schedule times."""

    def __init__(self, queue: Any, store: Store, caller: Caller, signer: Signer | None) -> None:
        self._queue = queue
        self._store = store
        self._caller = caller
        self._signer = signer
        self._due: list[tuple[float, str]] = []
        self._in_flight: set[asyncio.Task[None]] = set()
        self._bucket = _bucket(queue)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        for task in store.tasks[queue.name].values():
            heapq.heappush(self._due, (stamp_of(task.schedule_time), task.name))
        self.pump()

    def reconfigure(self, queue: Any) -> None:
        """Take over a queue's new settings or state."""
        old = self._bucket
        self._queue, self._bucket = queue, _bucket(queue)
        if (old.rate, old.size) == (self._bucket.rate, self._bucket.size):
            self._bucket = old  # a pause and a resume do not refill it
        self.pump()

    def schedule(self, task: Any) -> None:
        """Dispatch a task at its schedule time."""
        heapq.heappush(self._due, (stamp_of(task.schedule_time), task.name))
        self.pump()

    def run_now(self, task: Any) -> None:
        """Dispatch a task at once, whatever the queue's limits and state; its schedule time moves to now."""
        set_stamp(task.schedule_time, time.time())
        self._start(task)

    def pump(self) -> None:
        """Start what is due as far as the limits allow, and come back when more may be possible."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limits = self._queue.rate_limits
        while self._runs() and self._due and len(self._in_flight) < limits.max_concurrent_dispatches:
            task = self._first()
            if task is None:
                continue
            wait = max(self._due[0][0] - time.time(), self._bucket.wait())
            if wait > 0:
                self._timer = asyncio.get_running_loop().call_later(wait, self.pump)
                return
            heapq.heappop(self._due)
            self._bucket.take()
            self._start(task)

    def _runs(self) -> bool:
        return not self._closed and self._queue.state == Queue.RUNNING

    def _first(self) -> Any | None:
        """Return the task that is due first; an entry that no longer holds is removed (then None)."""
        at, name = self._due[0]
        task = self._store.task(name)
        if task is None or stamp_of(task.schedule_time) != at:
            heapq.heappop(self._due)
            return None
        return task

    def _start(self, task: Any) -> None:
        sending = asyncio.create_task(self._attempt(task))
        self._in_flight.add(sending)
        sending.add_done_callback(self._done)

    def _done(self, sending: asyncio.Task[None]) -> None:
        self._in_flight.discard(sending)
        self.pump()

    async def _attempt(self, task: Any) -> None:
        try:
            await self._dispatch(task)
        except OSError:  # the disk is full; the task is still the store's, so it is dispatched again
            asyncio.get_running_loop().call_later(DISK_RETRY, self.schedule, task)

    async def _dispatch(self, task: Any) -> None:
        eta = stamp_of(task.schedule_time)
        now = time.time()
        task.dispatch_count += 1
        task.last_attempt.Clear()
        task.last_attempt.schedule_time.CopyFrom(task.schedule_time)
        set_stamp(task.last_attempt.dispatch_time, now)
        if task.dispatch_count == 1:
            set_stamp(task.first_attempt.dispatch_time, now)
        self._store.save_task(task)
        request = task.http_request
        body = request.body or None
        method = Method(request.http_method).name
        answer = await self._caller.send(
            method, request.url, body, self._headers(task, eta), seconds(task.dispatch_deadline)
        )
        if self._store.task(task.name) is task:  # else deleted or purged meanwhile
            self._settle(task, answer)

    def _headers(self, task: Any, eta: float) -> dict[str, str]:
        request = task.http_request
        headers = {**request.headers, "User-Agent": "Google-Cloud-Tasks"}
        headers |= {
            "X-CloudTasks-QueueName": self._queue.name.rpartition("/")[2],
            "X-CloudTasks-TaskName": task.name.rpartition("/")[2],
            "X-CloudTasks-TaskRetryCount": str(task.dispatch_count - 1),
            "X-CloudTasks-TaskExecutionCount": str(task.response_count),
            "X-CloudTasks-TaskETA": f"{eta:.6f}",
        }
        if self._signer is not None and request.oidc_token.service_account_email:
            audience = request.oidc_token.audience or request.url
            token = self._signer.id_token(request.oidc_token.service_account_email, audience)
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _settle(self, task: Any, answer: Answer) -> None:
        now = time.time()
        if answer.status is not None:
            task.response_count += 1
            set_stamp(task.last_attempt.response_time, now)
        if answer.status is not None and 200 <= answer.status < 300:
            self._store.finish_tasks([task.name])
            return
        task.last_attempt.response_status.code = _code(answer)
        task.last_attempt.response_status.message = answer.problem or f"HTTP status {answer.status}"
        retry = task.retry_config if task.HasField("retry_config") else self._queue.retry_config
        if retrying.exhausted(retry, task, now) or now - stamp_of(task.create_time) > MAX_AGE:
            self._store.finish_tasks([task.name])
            return
        wait = max(retrying.backoff(retry, task.dispatch_count), retrying.asked_for(answer.headers))
        set_stamp(task.schedule_time, now + wait)
        self._store.save_task(task)
        self.schedule(task)

    async def close(self) -> None:
        """Cancel the requests in flight; their tasks stay and are dispatched again after a restart."""
        self.detach()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    def detach(self) -> None:
        """Stop dispatching, without waiting."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for sending in self._in_flight:
            sending.cancel()


def _bucket(queue: Any) -> Bucket:
    return Bucket(queue.rate_limits.max_dispatches_per_second, float(queue.rate_limits.max_burst_size))


def _code(answer: Answer) -> int:
    if answer.status is None:
        return int(code_pb2.DEADLINE_EXCEEDED if answer.problem == "timeout" else code_pb2.UNAVAILABLE)
    return int(_CODES.get(answer.status, code_pb2.UNKNOWN))
