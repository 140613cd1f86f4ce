"""Topics and subscriptions: what is published where, and what the journal keeps of it."""

from __future__ import annotations

import time
from collections import defaultdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from google.pubsub_v1 import types

from local.pubsub import limits
from local.pubsub.backlog import Backlog, Delivery, Message
from local.serving.rpc import already_exists, not_found

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from local.serving.journal import Journal

Topic: type[Any] = types.Topic.pb()
Subscription: type[Any] = types.Subscription.pb()
PubsubMessage: type[Any] = types.PubsubMessage.pb()

DELETED_TOPIC = "_deleted-topic_"  # a subscription's topic after the topic was deleted
SOURCE = "CloudPubSubDeadLetterSource"  # what the attributes of a dead letter begin with


class Broker:
    """All topics and subscriptions of one server.

    `attached` is called with each backlog that appears (also those found in the journal), `detached` with
    each that is deleted. Everything accepted is in the journal before a method returns.
    """

    def __init__(
        self,
        journal: Journal,
        attached: Callable[[Backlog], None],
        detached: Callable[[Backlog], None],
    ) -> None:
        self.topics: dict[str, Any] = {}
        self.backlogs: dict[str, Backlog] = {}
        self._journal = journal
        self._attached, self._detached = attached, detached
        self._by_topic: defaultdict[str, dict[str, Backlog]] = defaultdict(dict)
        self._last_id = time.time_ns() // 1000  # microseconds: grows over restarts, shaped like Google's ids
        self._load()

    def _load(self) -> None:
        for key, value in self._journal.items("t/"):
            self.topics[key[2:]] = Topic.FromString(value)
        for _key, value in self._journal.items("s/"):
            self._attach(Subscription.FromString(value))
        messages = {key[2:]: value for key, value in self._journal.items("m/")}
        self._last_id = max([self._last_id, *map(int, messages)])
        found: dict[str, Message] = {}
        for key, value in self._journal.items("d/"):
            name, _, message_id = key[2:].rpartition("/")
            if message_id in messages and name in self.backlogs:
                message = found.setdefault(message_id, _message(message_id, messages[message_id]))
                self.backlogs[name].add([Delivery(message, int(value))])

    def close(self) -> None:
        """Let go of every delivery and its timers; the journal keeps them."""
        for backlog in self.backlogs.values():
            backlog.empty()

    def create_topic(self, topic: Any) -> Any:
        """Create a topic. Refuses a malformed or taken name."""
        limits.check_name("topics", topic.name)
        if topic.name in self.topics:
            raise already_exists("Topic already exists")
        self.save_topic(topic)
        return topic

    def save_topic(self, topic: Any) -> None:
        """Keep a topic's settings."""
        self._journal.write([(f"t/{topic.name}", topic.SerializeToString())])
        self.topics[topic.name] = topic

    def topic(self, name: str) -> Any:
        """Return a topic, or refuse."""
        limits.check_name("topics", name)
        if name not in self.topics:
            raise not_found("Topic not found")
        return self.topics[name]

    def delete_topic(self, name: str) -> None:
        """Delete a topic; its subscriptions stay, with their backlog, and are marked."""
        self.topic(name)
        backlogs = self._by_topic.pop(name, {}).values()
        for backlog in backlogs:
            backlog.config.topic = DELETED_TOPIC
        self._journal.write([_subscription_record(backlog.config) for backlog in backlogs], [f"t/{name}"])
        del self.topics[name]

    def subscriptions_of(self, topic: str) -> list[str]:
        """Return the names of a topic's subscriptions."""
        return sorted(self._by_topic.get(topic, ()))

    def create_subscription(self, config: Any) -> Any:
        """Create a subscription. Refuses a taken name, a missing topic, and settings out of bounds."""
        limits.check_subscription(config)
        limits.check_name("topics", config.topic)
        if config.name in self.backlogs:
            raise already_exists("Subscription already exists")
        if config.topic not in self.topics:
            raise not_found("Subscription topic does not exist")
        self._check_dead_letter_topic(config)
        self._journal.write([_subscription_record(config)])
        self._attach(config)
        return config

    def save_subscription(self, config: Any) -> None:
        """Replace the settings of an existing subscription. Refuses settings out of bounds."""
        limits.check_subscription(config)
        self._check_dead_letter_topic(config)
        self._journal.write([_subscription_record(config)])
        backlog = self.backlogs[config.name]
        backlog.config = config
        for listener in backlog.listeners:
            listener()

    def _check_dead_letter_topic(self, config: Any) -> None:
        if config.HasField("dead_letter_policy") and config.dead_letter_policy.dead_letter_topic not in self.topics:
            raise not_found("Dead letter topic not found")

    def backlog(self, subscription: str) -> Backlog:
        """Return a subscription's backlog, or refuse."""
        limits.check_name("subscriptions", subscription)
        if subscription not in self.backlogs:
            raise not_found("Subscription does not exist")
        return self.backlogs[subscription]

    def delete_subscription(self, name: str) -> None:
        """Delete a subscription and its backlog."""
        backlog = self.backlog(name)
        self._journal.write(drops=[f"s/{name}", *backlog.records(backlog.held())])
        self._detached(backlog)
        backlog.empty()
        del self.backlogs[name]
        self._by_topic[backlog.config.topic].pop(name, None)

    def _attach(self, config: Any) -> None:
        backlog = Backlog(config, self._journal, self._forward)
        self.backlogs[config.name] = backlog
        if config.topic != DELETED_TOPIC:
            self._by_topic[config.topic][config.name] = backlog
        self._attached(backlog)

    def publish(self, topic: str, messages: Sequence[Any], drops: Sequence[str] = ()) -> list[str]:
        """Store messages for every subscription of a topic and return their ids.

        `drops` are journal keys that go away in the same append. The messages' ids and times are set here.
        """
        backlogs = self._by_topic.get(topic, {}).values()
        stored = [self._stamp(message) for message in messages]
        puts = [(message.key, message.raw) for message in stored if backlogs]
        puts += [(backlog.key(message.id), b"0") for backlog in backlogs for message in stored]
        self._journal.write(puts, drops)
        for backlog in backlogs:
            backlog.add([Delivery(message) for message in stored])
        return [message.id for message in stored]

    def _stamp(self, message: Any) -> Message:
        self._last_id = max(self._last_id + 1, time.time_ns() // 1000)
        message.message_id = str(self._last_id)
        message.publish_time.FromMilliseconds(time.time_ns() // 1_000_000)
        return _message(message.message_id, message.SerializeToString(), message)

    def _forward(self, backlog: Backlog, delivery: Delivery) -> bool:
        """Publish a delivery to its subscription's dead-letter topic and forget it, in one journal append."""
        topic = backlog.config.dead_letter_policy.dead_letter_topic
        if topic not in self.topics:
            return False  # as the real service: delivered on, until the topic is back or retention ends
        letter = dead_letter(backlog.name, delivery)
        self.publish(topic, [letter], backlog.records([delivery]))
        backlog.release([delivery])
        return True


def dead_letter(subscription: str, delivery: Delivery) -> Any:
    """Return the message for the dead-letter topic: the original plus the attributes that Google adds."""
    letter = PubsubMessage.FromString(delivery.message.raw)
    _, project, _, short = subscription.split("/")
    published = datetime.fromtimestamp(delivery.message.published, UTC)
    letter.attributes[f"{SOURCE}DeliveryCount"] = str(delivery.failed)
    letter.attributes[f"{SOURCE}Subscription"] = short
    letter.attributes[f"{SOURCE}SubscriptionProject"] = project
    letter.attributes[f"{SOURCE}TopicPublishTime"] = published.isoformat(timespec="milliseconds")
    return letter


def _message(message_id: str, raw: bytes, parsed: Any = None) -> Message:
    parsed = PubsubMessage.FromString(raw) if parsed is None else parsed
    return Message(message_id, raw, parsed.publish_time.ToMilliseconds() / 1000)


def _subscription_record(config: Any) -> tuple[str, bytes]:
    return f"s/{config.name}", config.SerializeToString()
