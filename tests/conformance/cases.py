"""What the conformance cases share: a server with its real clients, and the slow scenes begun up front."""

from __future__ import annotations

import base64
import itertools
import time
from collections.abc import Iterable
from typing import Any

import pytest
from google.cloud.pubsub_v1 import PublisherClient, SubscriberClient
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1 import PublisherClient as GapicPublisher

from tests.local.endpoint import MANY, Answer, Endpoint

PROJECT = "projects/conformance"
ACK_DEADLINE = 10  # seconds; the shortest that Pub/Sub allows


def topic_of(name: str) -> str:
    return f"{PROJECT}/topics/{name}"


def subscription_of(name: str) -> str:
    return f"{PROJECT}/subscriptions/{name}"


class Backend:
    """One of the servers, by the official clients, told its address by PUBSUB_EMULATOR_HOST as in use."""

    def __init__(self, kind: str, address: str) -> None:
        self.kind = kind
        self.address = address
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PUBSUB_EMULATOR_HOST", address)
            self.publisher = PublisherClient()
            self.subscriber = SubscriberClient()

    @property
    def is_local(self) -> bool:
        return self.kind == "local"

    def topic(self, name: str) -> str:
        self.publisher.create_topic(name=topic_of(name))
        return topic_of(name)

    def subscription(self, name: str, topic: str, url: str = "", **settings: Any) -> str:
        if url:
            settings.setdefault("push_config", {"push_endpoint": url})
        settings.setdefault("ack_deadline_seconds", ACK_DEADLINE)
        self.subscriber.create_subscription(request={"name": subscription_of(name), "topic": topic, **settings})
        return subscription_of(name)

    def pair(self, name: str, url: str = "", **settings: Any) -> tuple[str, str]:
        """Create a topic and a subscription of the same name."""
        topic = self.topic(name)
        return topic, self.subscription(name, topic, url, **settings)

    def publish(self, topic: str, *messages: dict[str, Any], timeout: float = MANY) -> list[str]:
        """Publish in one request by the raw GAPIC publisher, without retries."""
        response = GapicPublisher.publish(
            self.publisher, request={"topic": topic, "messages": [*messages]}, retry=None, timeout=timeout
        )
        return list(response.message_ids)

    def pull(self, subscription: str, at_least: int = 1, *, ack: bool = True, timeout: float = MANY) -> list[Any]:
        """Pull until there are `at_least` messages; fails after `timeout` seconds."""
        until, found = time.monotonic() + timeout, list[Any]()
        while len(found) < at_least and time.monotonic() < until:
            found += self.pull_now(subscription)
            if len(found) < at_least:
                time.sleep(0.05)
        assert len(found) >= at_least, f"{len(found)} of {at_least} messages"
        if ack and found:
            self.ack(subscription, (each.ack_id for each in found))
        return found

    def pull_now(self, subscription: str) -> list[Any]:
        request = {"subscription": subscription, "max_messages": 1000, "return_immediately": True}
        with pytest.warns(DeprecationWarning, match="return_immediately"):  # keeps an empty pull from waiting
            return list(self.subscriber.pull(request=request, timeout=MANY).received_messages)

    def ack(self, subscription: str, ack_ids: Iterable[str]) -> None:
        self.subscriber.acknowledge(subscription=subscription, ack_ids=list(ack_ids))

    def modify(self, subscription: str, ack_ids: Iterable[str], seconds: int) -> None:
        self.subscriber.modify_ack_deadline(
            subscription=subscription, ack_ids=list(ack_ids), ack_deadline_seconds=seconds
        )


def backoff(minimum: int, maximum: int) -> dict[str, Duration]:
    return {"minimum_backoff": Duration(seconds=minimum), "maximum_backoff": Duration(seconds=maximum)}


def data_of(message: dict[str, Any]) -> bytes:
    """Return the data of an envelope's message."""
    return base64.b64decode(message.get("data", ""))


_scenes = itertools.count(1)


class Scenes:
    """Deliveries that need many seconds, begun when the server has started; a test looks at one's outcome."""

    def __init__(self, backend: Backend, endpoint: Endpoint) -> None:
        # A path of its own each time: a server may be started again for another file of tests.
        self.prefix = f"/{backend.kind}-{next(_scenes)}-scene"
        self._backend, self._endpoint = backend, endpoint
        self.slow = self._push("slow", Answer(delay=ACK_DEADLINE + 3), Answer())
        self.backoff = self._push("backoff", 500, 500, 500, 200, retry_policy=backoff(1, 2))
        self.dead_topic = backend.topic("scene-dead-letters")
        self.dead = self._push(
            "dead",
            500,
            dead_letter_policy={"dead_letter_topic": self.dead_topic, "max_delivery_attempts": 5},
        )
        self.letters = backend.subscription(
            "scene-dead-letters", self.dead_topic, endpoint.url(f"{self.prefix}-letters")
        )
        for name in ("slow", "backoff", "dead"):
            backend.publish(topic_of(f"scene-{name}"), {"data": name.encode(), "attributes": {"own": "1"}})
        self._begin_leases()

    def _push(self, name: str, *answers: Answer | int, **settings: Any) -> str:
        """Create a pair whose subscription pushes to this scene's path; return the path."""
        path = f"{self.prefix}-{name}"
        self._backend.pair(f"scene-{name}", self._endpoint.url(path, *answers), **settings)
        return path

    def _begin_leases(self) -> None:
        """Pull two messages: one is left to its deadline, the other's deadline is extended."""
        topic, self.leases = self._backend.pair("scene-leases")
        self._backend.publish(topic, {"data": b"left"}, {"data": b"extended"})
        found = {bytes(each.message.data): each for each in self._backend.pull(self.leases, 2, ack=False)}
        self.leased_at = time.monotonic()
        self.extended_ack_id = str(found[b"extended"].ack_id)
        self._backend.modify(self.leases, [self.extended_ack_id], 120)
