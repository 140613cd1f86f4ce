"""The gRPC service google.cloud.tasks.v2.CloudTasks."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

import grpc
from google.cloud.tasks_v2 import types
from google.protobuf import empty_pb2, field_mask_pb2

from local.cloudtasks import limits
from local.cloudtasks.dispatch import Dispatcher
from local.cloudtasks.store import Queue, Task, queue_of
from local.serving.rpc import RefusedError, already_exists, generic_handler, not_found, page

if TYPE_CHECKING:
    from collections.abc import Callable

    from local.cloudtasks.store import Store


class Service:
    """Queues and tasks; `dispatching` makes the dispatcher of a queue."""

    def __init__(self, store: Store, dispatching: Callable[[Any], Dispatcher]) -> None:
        self._store = store
        self._dispatching = dispatching
        self.dispatchers = {name: dispatching(queue) for name, queue in store.queues.items()}

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler."""
        return generic_handler(
            "google.cloud.tasks.v2.CloudTasks",
            {
                "CreateQueue": (self.create_queue, types.CreateQueueRequest.pb()),
                "CreateTask": (self.create_task, types.CreateTaskRequest.pb()),
                "DeleteQueue": (self.delete_queue, types.DeleteQueueRequest.pb()),
                "DeleteTask": (self.delete_task, types.DeleteTaskRequest.pb()),
                "GetQueue": (self.get_queue, types.GetQueueRequest.pb()),
                "GetTask": (self.get_task, types.GetTaskRequest.pb()),
                "ListQueues": (self.list_queues, types.ListQueuesRequest.pb()),
                "ListTasks": (self.list_tasks, types.ListTasksRequest.pb()),
                "PauseQueue": (self.pause_queue, types.PauseQueueRequest.pb()),
                "PurgeQueue": (self.purge_queue, types.PurgeQueueRequest.pb()),
                "ResumeQueue": (self.resume_queue, types.ResumeQueueRequest.pb()),
                "RunTask": (self.run_task, types.RunTaskRequest.pb()),
                "UpdateQueue": (self.update_queue, types.UpdateQueueRequest.pb()),
            },
        )

    async def create_queue(self, request: Any) -> Any:
        """Create a queue. Refuses a taken name, and one deleted too recently."""
        limits.check_location(request.parent)
        if request.queue.name in self._store.queues:
            raise already_exists("Queue already exists")
        return self._new_queue(request.queue)

    def _new_queue(self, queue: Any) -> Any:
        limits.fill_queue(queue)
        if self._store.buried(queue.name):
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "The queue cannot be created because a queue with this name existed too recently.",
            )
        queue.state = Queue.RUNNING
        self._store.save_queue(queue)
        self.dispatchers[queue.name] = self._dispatching(queue)
        return queue

    async def update_queue(self, request: Any) -> Any:
        """Change a queue's limits or retries, or create it when it does not exist, as the real service."""
        limits.check_queue_name(request.queue.name)
        if request.queue.name not in self._store.queues:
            return self._new_queue(request.queue)
        paths = list(request.update_mask.paths) or sorted(limits.UPDATABLE)
        limits.check_mask(paths)
        queue = Queue()
        queue.CopyFrom(self._queue(request.queue.name))
        for path in paths:
            if "." not in path:
                queue.ClearField(path)
        field_mask_pb2.FieldMask(paths=paths).MergeMessage(request.queue, queue)
        limits.fill_queue(queue)
        return self._changed(queue)

    def _changed(self, queue: Any) -> Any:
        self._store.save_queue(queue)
        self.dispatchers[queue.name].reconfigure(queue)
        return queue

    def _queue(self, name: str) -> Any:
        limits.check_queue_name(name)
        if name not in self._store.queues:
            raise not_found("Queue does not exist.")
        return self._store.queues[name]

    async def get_queue(self, request: Any) -> Any:
        """Return a queue."""
        return self._queue(request.name)

    async def list_queues(self, request: Any) -> Any:
        """Return a page of a location's queues."""
        limits.check_location(request.parent)
        prefix = f"{request.parent}/queues/"
        names = sorted(name for name in self._store.queues if name.startswith(prefix))
        part, token = page(names, request.page_size, request.page_token)
        return types.ListQueuesResponse.pb()(queues=[self._store.queues[name] for name in part], next_page_token=token)

    async def delete_queue(self, request: Any) -> Any:
        """Delete a queue and its tasks; its name cannot be used again for days."""
        self._queue(request.name)
        self.dispatchers.pop(request.name).detach()
        self._store.delete_queue(request.name)
        return empty_pb2.Empty()

    async def purge_queue(self, request: Any) -> Any:
        """Delete all tasks of a queue."""
        queue = self._queue(request.name)
        self._store.finish_tasks(list(self._store.tasks[request.name]))
        limits.set_stamp(queue.purge_time, time.time())
        return self._changed(queue)

    async def pause_queue(self, request: Any) -> Any:
        """Stop dispatching; tasks can still be created."""
        queue = self._queue(request.name)
        queue.state = Queue.PAUSED
        return self._changed(queue)

    async def resume_queue(self, request: Any) -> Any:
        """Dispatch again."""
        queue = self._queue(request.name)
        queue.state = Queue.RUNNING
        return self._changed(queue)

    async def create_task(self, request: Any) -> Any:
        """Add a task to a queue. Refuses a name in use, or used too recently, and what is out of bounds."""
        self._queue(request.parent)
        task = Task()
        task.CopyFrom(request.task)
        task.name = task.name or f"{request.parent}/tasks/{secrets.randbits(63)}"
        limits.check_task_name(task.name, request.parent)
        for field in ("dispatch_count", "response_count", "first_attempt", "last_attempt", "view"):
            task.ClearField(field)  # output only
        limits.fill_task(task)
        if self._store.task(task.name) is not None:
            raise already_exists("Requested entity already exists")
        if self._store.buried(task.name):
            raise already_exists("The task cannot be created because a task with this name existed too recently.")
        task.create_time.FromSeconds(int(time.time()))
        self._store.save_task(task)
        self.dispatchers[request.parent].schedule(task)
        return seen(task, request.response_view)

    def _task(self, name: str) -> Any:
        limits.check_task_name(name)
        self._queue(queue_of(name))
        task = self._store.task(name)
        if task is None:
            gone = " It was completed or deleted recently." if self._store.buried(name) else ""
            raise not_found(f"The task does not exist.{gone}")
        return task

    async def get_task(self, request: Any) -> Any:
        """Return a task."""
        return seen(self._task(request.name), request.response_view)

    async def list_tasks(self, request: Any) -> Any:
        """Return a page of a queue's tasks."""
        self._queue(request.parent)
        names = sorted(self._store.tasks[request.parent])
        part, token = page(names, request.page_size, request.page_token)
        tasks = [seen(self._store.tasks[request.parent][name], request.response_view) for name in part]
        return types.ListTasksResponse.pb()(tasks=tasks, next_page_token=token)

    async def delete_task(self, request: Any) -> Any:
        """Delete a task; a dispatch in flight goes on."""
        self._task(request.name)
        self._store.finish_tasks([request.name])
        return empty_pb2.Empty()

    async def run_task(self, request: Any) -> Any:
        """Dispatch a task now, also from a paused queue and over its limits."""
        task = self._task(request.name)
        self.dispatchers[queue_of(request.name)].run_now(task)
        return seen(task, request.response_view)


def seen(task: Any, view: int) -> Any:
    """Return a copy of a task as a view shows it: BASIC leaves the body out."""
    copy = Task()
    copy.CopyFrom(task)
    full = types.Task.View.FULL
    copy.view = full if view == full else types.Task.View.BASIC
    if copy.view != full:
        copy.http_request.ClearField("body")
    return copy
