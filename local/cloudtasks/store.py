"""Queues, tasks and the names that may not be used again yet, in the journal and in memory."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from google.cloud.tasks_v2 import types

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from local.serving.journal import Journal

Queue: type[Any] = types.Queue.pb()
Task: type[Any] = types.Task.pb()


class Store:
    """What the server knows; every change is in the journal before the method returns.

    A tombstone keeps a name from being used again for some seconds: `task_tombstone` after a task completed
    or was deleted, `queue_tombstone` after a queue was deleted.
    """

    def __init__(self, journal: Journal, task_tombstone: float, queue_tombstone: float) -> None:
        self.queues: dict[str, Any] = {}
        self.tasks: dict[str, dict[str, Any]] = {}
        self._journal = journal
        self._task_tombstone, self._queue_tombstone = task_tombstone, queue_tombstone
        self._tombstones: dict[str, float] = {}
        for key, value in journal.items("q/"):
            self.queues[key[2:]] = Queue.FromString(value)
            self.tasks[key[2:]] = {}
        for key, value in journal.items("t/"):
            self.tasks[queue_of(key[2:])][key[2:]] = Task.FromString(value)
        for key, value in journal.items("x/"):
            self._tombstones[key[2:]] = float(value)
        self._sweep()

    def save_queue(self, queue: Any) -> None:
        """Keep a queue's settings."""
        self._journal.write([(f"q/{queue.name}", queue.SerializeToString())])
        self.queues[queue.name] = queue
        self.tasks.setdefault(queue.name, {})

    def delete_queue(self, name: str) -> None:
        """Forget a queue and its tasks, and keep its name for a while."""
        drops = [f"q/{name}", *(f"t/{task}" for task in self.tasks[name])]
        self._journal.write(self._bury([name], self._queue_tombstone), drops)
        del self.queues[name], self.tasks[name]

    def save_task(self, task: Any) -> None:
        """Keep a task's state."""
        self._journal.write([(f"t/{task.name}", task.SerializeToString())])
        self.tasks[queue_of(task.name)][task.name] = task

    def finish_tasks(self, names: Iterable[str]) -> None:
        """Forget tasks, and keep their names for a while; unknown ones are skipped."""
        known = [name for name in names if self.task(name) is not None]
        self._journal.write(self._bury(known, self._task_tombstone), [f"t/{name}" for name in known])
        for name in known:
            del self.tasks[queue_of(name)][name]

    def task(self, name: str) -> Any | None:
        """Return a task, or None."""
        return self.tasks.get(queue_of(name), {}).get(name)

    def buried(self, name: str) -> bool:
        """Say whether a name was in use too recently."""
        return self._tombstones.get(name, 0.0) > time.time()

    def _bury(self, names: Iterable[str], length: float) -> Iterator[tuple[str, bytes]]:
        if len(self._tombstones) > 2 * self._alive:
            self._sweep()
        until = time.time() + length
        for name in names:
            self._tombstones[name] = until
            yield f"x/{name}", repr(until).encode()

    def _sweep(self) -> None:
        """Drop the tombstones that have passed, whenever their number has doubled."""
        now = time.time()
        gone = [name for name, until in self._tombstones.items() if until <= now]
        self._journal.write(drops=[f"x/{name}" for name in gone])
        for name in gone:
            del self._tombstones[name]
        self._alive = max(1000, len(self._tombstones))


def queue_of(task: str) -> str:
    """Return the queue's name in a task's."""
    return task.partition("/tasks/")[0]
