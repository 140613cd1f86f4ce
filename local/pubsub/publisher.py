"""The gRPC service google.pubsub.v1.Publisher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf import empty_pb2, field_mask_pb2
from google.pubsub_v1 import types

from local.pubsub import limits
from local.serving.rpc import generic_handler, invalid, page

if TYPE_CHECKING:
    import grpc

    from local.pubsub.broker import Broker

PublishResponse: type[Any] = types.PublishResponse.pb()


class Publisher:
    """Topics and publishing."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler."""
        return generic_handler(
            "google.pubsub.v1.Publisher",
            {
                "CreateTopic": (self.create_topic, types.Topic.pb()),
                "DeleteTopic": (self.delete_topic, types.DeleteTopicRequest.pb()),
                "GetTopic": (self.get_topic, types.GetTopicRequest.pb()),
                "ListTopicSubscriptions": (
                    self.list_topic_subscriptions,
                    types.ListTopicSubscriptionsRequest.pb(),
                ),
                "ListTopics": (self.list_topics, types.ListTopicsRequest.pb()),
                "Publish": (self.publish, types.PublishRequest.pb()),
                "UpdateTopic": (self.update_topic, types.UpdateTopicRequest.pb()),
            },
        )

    async def create_topic(self, topic: Any) -> Any:
        """Create a topic."""
        return self._broker.create_topic(topic)

    async def get_topic(self, request: Any) -> Any:
        """Return a topic."""
        return self._broker.topic(request.topic)

    async def update_topic(self, request: Any) -> Any:
        """Change a topic's labels or message retention; the latter is kept but has no effect here."""
        topic = type(request.topic)()
        topic.CopyFrom(self._broker.topic(request.topic.name))
        paths = set(request.update_mask.paths)
        if not paths or not paths <= {"labels", "message_retention_duration"}:
            raise invalid("Invalid update_mask.")
        for path in paths:
            topic.ClearField(path)
        field_mask_pb2.FieldMask(paths=paths).MergeMessage(request.topic, topic)
        self._broker.save_topic(topic)
        return topic

    async def list_topics(self, request: Any) -> Any:
        """Return a page of a project's topics."""
        prefix = f"{request.project}/topics/"
        names = sorted(name for name in self._broker.topics if name.startswith(prefix))
        part, token = page(names, request.page_size, request.page_token)
        return types.ListTopicsResponse.pb()(topics=[self._broker.topics[name] for name in part], next_page_token=token)

    async def list_topic_subscriptions(self, request: Any) -> Any:
        """Return a page of the names of a topic's subscriptions."""
        self._broker.topic(request.topic)
        names = self._broker.subscriptions_of(request.topic)
        part, token = page(names, request.page_size, request.page_token)
        return types.ListTopicSubscriptionsResponse.pb()(subscriptions=part, next_page_token=token)

    async def delete_topic(self, request: Any) -> Any:
        """Delete a topic; its subscriptions stay."""
        self._broker.delete_topic(request.topic)
        return empty_pb2.Empty()

    async def publish(self, request: Any) -> Any:
        """Store messages for every subscription of the topic; return their ids."""
        self._broker.topic(request.topic)
        limits.check_publish(request)
        return PublishResponse(message_ids=self._broker.publish(request.topic, request.messages))
