"""Real Pub/Sub and Cloud Tasks servers, as the outbox sees them and as a test looks into them."""

from __future__ import annotations

import itertools
import json
from typing import Any
from uuid import UUID

import grpc
import pytest
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.cloud.tasks_v2.types import Task
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport

from shared.outbox import DELAYED
from shared.publisher import Dispatch, Publisher
from shared.tasks import Tasks

TOPICS = ("test-only", "test-twin", "test-first", "test-second", "test-left", "test-right", "test-join")
URL = "https://step.example"
_projects = itertools.count()


def publisher_client(address: str) -> PublisherClient:
    return PublisherClient(transport=PublisherGrpcTransport(channel=grpc.insecure_channel(address)))


class Cloud:
    """A project of its own on a Pub/Sub server: topics, a subscription each, and what arrived there."""

    def __init__(self, address: str, topics: tuple[str, ...] = TOPICS) -> None:
        self.project = f"outbox-{next(_projects)}"
        self.publisher = Publisher(self.project, client=lambda: publisher_client(address))
        self._admin = publisher_client(address)
        self._subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=grpc.insecure_channel(address)))
        for topic in topics:
            self.create(topic)

    def create(self, topic: str) -> None:
        name = f"projects/{self.project}/topics/{topic}"
        self._admin.create_topic(name=name)
        subscription = {"name": self._subscription(topic), "topic": name, "ack_deadline_seconds": 600}
        self._subscriber.create_subscription(request=subscription)

    def arrived(self, topic: str = "test-only") -> list[Dispatch]:
        """Take everything that has arrived in a topic since the last look."""
        found: list[Dispatch] = []
        while True:
            request = {"subscription": self._subscription(topic), "max_messages": 1000, "return_immediately": True}
            with pytest.warns(DeprecationWarning, match="return_immediately"):  # keeps an empty pull from waiting
                received = list(self._subscriber.pull(request=request, timeout=30).received_messages)
            if not received:
                return found
            ids = [message.ack_id for message in received]
            self._subscriber.acknowledge(subscription=self._subscription(topic), ack_ids=ids)
            found += [_dispatch(json.loads(one.message.data), one.message.attributes) for one in received]

    def close(self) -> None:
        self._admin.transport.close()  # type: ignore[no-untyped-call]
        self._subscriber.transport.close()  # type: ignore[no-untyped-call]

    def _subscription(self, topic: str) -> str:
        return f"projects/{self.project}/subscriptions/{topic}"


def _dispatch(data: dict[str, Any], attributes: Any) -> Dispatch:
    which = UUID(data["operation_id"]), data["type"], data["step"], data["dispatch"]
    return Dispatch(*which, attributes.get("traceparent"))


def tasks_client(address: str) -> CloudTasksClient:
    return CloudTasksClient(transport=CloudTasksGrpcTransport(channel=grpc.insecure_channel(address)))


class Queues:
    """The queues of a project of its own on a Cloud Tasks server: paused, so that what they hold can be looked at."""

    def __init__(self, address: str, functions: tuple[str, ...], queues: tuple[str, ...] = (DELAYED, "test-paced")):
        self.project = f"tasks-{next(_projects)}"
        self.urls = dict.fromkeys(functions, URL)
        self.client = tasks_client(address)
        self._parent = f"projects/{self.project}/locations/europe-west2"
        for queue in queues:
            self.create(queue)

    def create(self, queue: str) -> None:
        name = f"{self._parent}/queues/{queue}"
        self.client.create_queue(request={"parent": self._parent, "queue": {"name": name}})
        self.client.pause_queue(name=name)

    def tasks(self, client: Any = None) -> Tasks:
        """The product's client for these queues."""
        account = "tasks@project.iam.gserviceaccount.com"
        return Tasks(self.project, "europe-west2", account, self.urls, client=lambda: client or self.client)

    def held(self, queue: str = DELAYED) -> list[Task]:
        """What a queue holds, whole."""
        name = f"{self._parent}/queues/{queue}"
        return list(self.client.list_tasks(request={"parent": name, "response_view": Task.View.FULL}))

    def purge(self, queue: str = DELAYED) -> None:
        """Lose everything that a queue holds; its names stay taken."""
        self.client.purge_queue(name=f"{self._parent}/queues/{queue}")

    def close(self) -> None:
        self.client.transport.close()  # type: ignore[no-untyped-call]


def dispatch_of(task: Task) -> Dispatch:
    """The dispatch that a task's body names."""
    return _dispatch(json.loads(task.http_request.body), task.http_request.headers)
