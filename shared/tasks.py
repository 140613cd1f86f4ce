"""Hands dispatches to Cloud Tasks: those due later, and those of paced steps.

Cloud Tasks has no call for many tasks, so a few threads make the calls; all have ended when `create` returns, since
a frozen instance may never run them again. Cloud Tasks is never the owner of a dispatch: the outbox row is, so a task
that is lost, late or doubled costs nothing but a message.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared import envelope
from shared.publisher import CHANNEL_OPTIONS, TIMEOUT, Dispatch, InvalidMessageError, PublishError

THREADS = 8  # calls at a time: one takes 10 to 30 ms, so a relay's batch of a thousand takes a few seconds
DEADLINE_MARGIN = timedelta(seconds=30)  # that a task's deadline is longer than the attempt: the function answers first
DEADLINES = timedelta(seconds=15), timedelta(minutes=30)  # what Cloud Tasks allows


@dataclass(frozen=True, slots=True)
class Target:
    """Where tasks go: the queue, the function that it calls, and how long one attempt there may take."""

    queue: str
    function: str
    timeout: timedelta


@dataclass(frozen=True, slots=True)
class Created:
    """What became of dispatches: those that Cloud Tasks calls invalid, with its reason, and those left.

    Of those left it is not known whether they were handed over; `problem` says why.
    """

    refused: Sequence[tuple[Dispatch, str]] = ()
    left: Sequence[Dispatch] = ()
    problem: str = ""


class Tasks:
    """A client for the queues of one region, created at its first use and shared by all threads of the instance.

    `account` is the service account whose token the tasks carry, `urls` where each function listens; the token's
    audience is that URL.
    """

    def __init__(
        self,
        project: str,
        location: str,
        account: str,
        urls: Mapping[str, str],
        client: Callable[[], Any] | None = None,
    ) -> None:
        self._parent = f"projects/{project}/locations/{location}"
        self._account = account
        self._urls = dict(urls)
        self._create_client = client or create_client
        self._client: Any = None
        self._lock = threading.Lock()

    def create(self, target: Target, dispatches: Sequence[Dispatch], timeout: float = TIMEOUT) -> Created:
        """Create a task for each dispatch, without any retry; never raises for what Cloud Tasks answers.

        A name that is taken counts as handed over: the row's next turn has another name. After the first call that
        fails (`timeout` is in seconds) no other is begun.
        """
        failed = threading.Event()

        def create_one(dispatch: Dispatch) -> InvalidMessageError | PublishError | None:
            if failed.is_set():
                return PublishError(f"not tried after another call to queue {target.queue} failed")
            try:
                self._create(target, dispatch, timeout)
            except InvalidMessageError as error:
                return error
            except PublishError as error:
                failed.set()
                return error
            return None

        return _summed(dispatches, _at_once(create_one, dispatches))

    def _create(self, target: Target, dispatch: Dispatch, timeout: float) -> None:
        from google.api_core.exceptions import AlreadyExists, GoogleAPIError, InvalidArgument
        from google.auth.exceptions import GoogleAuthError

        try:
            client = self._connected()
            client.create_task(request=self._request(target, dispatch), retry=None, timeout=timeout)
        except AlreadyExists:
            return
        except InvalidArgument as error:
            raise InvalidMessageError(error.message) from None
        except (GoogleAPIError, GoogleAuthError) as error:
            raise PublishError(f"{type(error).__name__} from queue {target.queue}") from None

    def _request(self, target: Target, dispatch: Dispatch) -> Any:
        from google.cloud.tasks_v2.types import CreateTaskRequest, HttpRequest, OidcToken, Task

        url = self._urls[target.function]
        queue = f"{self._parent}/queues/{target.queue}"
        low, high = DEADLINES
        headers = {"Content-Type": "application/json"}
        task = Task.pb()(
            name=f"{queue}/tasks/{task_name(dispatch)}",
            http_request=HttpRequest.pb()(
                url=url,
                body=envelope.encode(dispatch.operation_id, dispatch.type, dispatch.step, dispatch.dispatch),
                headers=headers | ({"traceparent": dispatch.traceparent} if dispatch.traceparent else {}),
                oidc_token=OidcToken.pb()(service_account_email=self._account, audience=url),
            ),
        )
        task.dispatch_deadline.FromTimedelta(min(max(target.timeout + DEADLINE_MARGIN, low), high))
        if dispatch.due_at is not None:
            task.schedule_time.FromDatetime(dispatch.due_at)
        return CreateTaskRequest.wrap(CreateTaskRequest.pb()(parent=queue, task=task))

    def _connected(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._create_client()
        return self._client


def task_name(dispatch: Dispatch) -> str:
    """Return the id of the task for this dispatch and this turn of its row.

    A call whose answer was lost and its repetition share it, so that they make one task; each later turn has its own,
    because a name stays taken for up to a day after its task ran. Hashed, since Cloud Tasks is slow with names that
    have a common beginning.
    """
    parts = (str(dispatch.operation_id), dispatch.step, str(dispatch.dispatch), str(dispatch.published))
    return hashlib.sha256("/".join(parts).encode()).hexdigest()


def create_client() -> Any:
    """Return a generated Cloud Tasks client, of the server that CLOUD_TASKS_EMULATOR_HOST names if it does."""
    import grpc
    from google.cloud.tasks_v2.services.cloud_tasks import CloudTasksClient
    from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport

    emulator = os.environ.get("CLOUD_TASKS_EMULATOR_HOST")
    if emulator:
        channel = grpc.insecure_channel(emulator, options=CHANNEL_OPTIONS)
    else:
        channel = CloudTasksGrpcTransport.create_channel("cloudtasks.googleapis.com:443", options=CHANNEL_OPTIONS)
    return CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))


Outcome = InvalidMessageError | PublishError | None


def _at_once(create_one: Callable[[Dispatch], Outcome], dispatches: Sequence[Dispatch]) -> list[Outcome]:
    if len(dispatches) == 1:
        return [create_one(dispatches[0])]
    with ThreadPoolExecutor(min(THREADS, len(dispatches))) as threads:
        return list(threads.map(create_one, dispatches))


def _summed(dispatches: Sequence[Dispatch], outcomes: Sequence[Outcome]) -> Created:
    pairs = list(zip(dispatches, outcomes, strict=True))
    return Created(
        [(dispatch, str(outcome)) for dispatch, outcome in pairs if isinstance(outcome, InvalidMessageError)],
        [dispatch for dispatch, outcome in pairs if isinstance(outcome, PublishError)],
        next((str(outcome) for outcome in outcomes if isinstance(outcome, PublishError)), ""),
    )
