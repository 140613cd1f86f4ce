"""A storm: the database goes away for twenty minutes under a backlog of thousands, comes back, and everything drains.

Time is scaled down: the database is really away for OUTAGE seconds, crashed and not asked; when it is back, all times
that it remembers are moved into the past by the rest of the twenty minutes, before anything else reaches it. Pub/Sub's
backoff is the local one, 1–10 s for 10–600 s in the cloud, and a tick is a second for a minute.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from google.api_core.exceptions import DeadlineExceeded
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import Subscription
from grpc import insecure_channel

from local.stack import PROJECT, Stack
from shared import operations
from shared.database import Connection, Database, connector
from shared.identity import Options, Request
from shared.outbox import Outbox
from shared.publisher import Publisher
from tests.stack.kit import scene

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

OPERATIONS = 5000
OUTAGE = 15.0  # seconds; twenty minutes with what is added to them
AWAY = 20 * 60  # seconds
DRAINED_BY = 180.0  # seconds to wait at most
MOST_MESSAGES = 3  # published for one operation
SUBSCRIPTION = f"projects/{PROJECT}/subscriptions/counted"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with scene("storm") as stack:
        yield stack


class Messages:
    """A second subscription to the step's topic, which counts the messages of each operation."""

    def __init__(self, stack: Stack) -> None:
        self._client = SubscriberClient(transport=SubscriberGrpcTransport(channel=insecure_channel(stack.pubsub)))
        topic = f"projects/{PROJECT}/topics/storm-step"
        self._client.create_subscription(request=Subscription(name=SUBSCRIPTION, topic=topic, ack_deadline_seconds=600))

    def published(self) -> Counter[str]:
        """How many messages each operation has had."""
        seen: Counter[str] = Counter()
        while messages := self._pull():
            seen.update(json.loads(message.message.data)["operation_id"] for message in messages)
            self._client.acknowledge(subscription=SUBSCRIPTION, ack_ids=[message.ack_id for message in messages])
        return seen

    def _pull(self) -> list[Any]:
        try:
            answer = self._client.pull(subscription=SUBSCRIPTION, max_messages=1000, retry=None, timeout=2)
        except DeadlineExceeded:
            return []
        return list(answer.received_messages)


def publisher(stack: Stack) -> PublisherClient:
    return PublisherClient(transport=PublisherGrpcTransport(channel=insecure_channel(stack.pubsub)))


def accept_all(stack: Stack) -> None:
    """Accept the operations, published at once as intake does."""
    database = Database(connector(stack.addresses.database), size=4)
    outbox = Outbox(database, stack.pipeline, Publisher(PROJECT, lambda: publisher(stack)))

    def accept(number: int) -> None:
        request = Request("storm.step", {"number": number}, Options())
        accepted = operations.accept(database, stack.pipeline, "shop", f"storm-{number}", request)
        outbox.publish_at_once(accepted.due)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(accept, range(OPERATIONS)))
    database.close()


def age_by(connection: Connection, seconds: float) -> None:
    """Move every time that the database remembers into the past."""
    ago = f"interval '{seconds} seconds'"
    for table, columns in {
        "steps": ["available_at", "attempt_started_at", "lease_expires_at", "finished_at"],
        "outbox": ["available_at", "publish_after", "created_at"],
        "progress": ["newest_available_at", "claimed_at"],
    }.items():
        connection.execute(f"UPDATE {table} SET {', '.join(f'{column} = {column} - {ago}' for column in columns)}")


def test_twenty_minutes_without_the_database_drain_without_a_person(stack: Stack) -> None:
    counted = Messages(stack)
    stack.hold_down("storm_step")
    accept_all(stack)
    stack.bring_up("storm_step")
    stack.stop_database()
    time.sleep(OUTAGE)
    for name in ("relay", "reconcile"):
        stack.hold_down(name)
    stack.start_database()
    connection = Connection(connector(stack.addresses.database)())
    age_by(connection, AWAY - OUTAGE)
    for name in ("relay", "reconcile"):
        stack.bring_up(name)

    started, curve = time.monotonic(), []
    while True:
        done = connection.raw.run("SELECT count(*) FROM operations WHERE state = 'succeeded'")[0][0]
        curve.append((time.monotonic() - started, done))
        if done == OPERATIONS:
            break
        assert curve[-1][0] < DRAINED_BY, f"{done} of {OPERATIONS} after {DRAINED_BY} s"
        time.sleep(1)

    published = counted.published()
    letters = connection.raw.run("SELECT state, count(*) FROM dead_letters GROUP BY state")
    attempts = connection.raw.run("SELECT max(attempt), max(failures) FROM steps")[0]
    connection.close()
    print(f"\ndrain: {', '.join(f'{int(at)} s {done}' for at, done in curve[:: max(len(curve) // 12, 1)])}, "
          f"{curve[-1][0]:.0f} s {curve[-1][1]}")  # fmt: skip
    print(f"messages per operation: {sorted(Counter(published.values()).items())}; dead letters: {letters}; "
          f"attempts and failures at most: {attempts}")  # fmt: skip
    assert len(published) == OPERATIONS
    assert max(published.values()) <= MOST_MESSAGES
    assert [count for state, count in letters if state == "open"] == []
