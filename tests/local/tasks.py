"""A Cloud Tasks server with the official client."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from google.cloud import tasks_v2
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

LOCATION = "projects/conformance/locations/europe-west1"
MANY = 30.0  # seconds


def client_of(address: str) -> tasks_v2.CloudTasksClient:
    """Return the official client over an insecure channel, as docs/local-servers.md shows."""
    transport = CloudTasksGrpcTransport(channel=grpc.insecure_channel(address))
    return tasks_v2.CloudTasksClient(transport=transport)


class Tasks:
    """The official client, with short forms of what the tests say often."""

    def __init__(self, address: str) -> None:
        self.client = client_of(address)

    def queue(self, name: str, **settings: Any) -> str:
        queue = {"name": f"{LOCATION}/queues/{name}", **settings}
        return str(self.client.create_queue(request={"parent": LOCATION, "queue": queue}).name)

    def create(self, queue: str, url: str, *, name: str = "", **task: Any) -> Any:
        """Create a task; members of its HTTP request are given as `request`."""
        task["http_request"] = {"url": url, **task.pop("request", {})}
        if name:
            task["name"] = f"{queue}/tasks/{name}"
        return self.client.create_task(request={"parent": queue, "task": task}, retry=None, timeout=MANY)

    def names(self, queue: str) -> set[str]:
        return {task.name for task in self.client.list_tasks(parent=queue)}

    def wait_empty(self, queue: str) -> None:
        wait_until(lambda: not self.names(queue))


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + MANY
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.02)


def in_seconds(seconds: float) -> Timestamp:
    """Return the moment that lies this many seconds ahead."""
    stamp = Timestamp()
    stamp.FromMicroseconds(int((time.time() + seconds) * 1e6))
    return stamp


def duration(seconds: float) -> Duration:
    length = Duration()
    length.FromMicroseconds(int(seconds * 1e6))
    return length
