"""The gRPC service google.pubsub.v1.Subscriber."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf import empty_pb2, field_mask_pb2
from google.pubsub_v1 import types

from local.pubsub import limits
from local.pubsub.broker import PubsubMessage, Subscription
from local.serving.rpc import RefusedError, generic_handler, invalid, page

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from local.pubsub.backlog import Backlog, Delivery
    from local.pubsub.broker import Broker

PULL_WAIT = 4.0  # seconds that an empty pull waits for a message; Google's "bounded amount of time"
MAX_PULL = 1000  # messages in one answer
DEFAULT_OUTSTANDING = 1000  # messages of a streaming pull without a limit of its own
ReceivedMessage: type[Any] = types.ReceivedMessage.pb()


class Subscriber:
    """Subscriptions and pulling."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the gRPC handler."""
        unary = {
            "Acknowledge": (self.acknowledge, types.AcknowledgeRequest.pb()),
            "CreateSubscription": (self.create_subscription, types.Subscription.pb()),
            "DeleteSubscription": (self.delete_subscription, types.DeleteSubscriptionRequest.pb()),
            "GetSubscription": (self.get_subscription, types.GetSubscriptionRequest.pb()),
            "ListSubscriptions": (self.list_subscriptions, types.ListSubscriptionsRequest.pb()),
            "ModifyAckDeadline": (self.modify_ack_deadline, types.ModifyAckDeadlineRequest.pb()),
            "ModifyPushConfig": (self.modify_push_config, types.ModifyPushConfigRequest.pb()),
            "Pull": (self.pull, types.PullRequest.pb()),
            "UpdateSubscription": (self.update_subscription, types.UpdateSubscriptionRequest.pb()),
        }
        streams = {"StreamingPull": (self.streaming_pull, types.StreamingPullRequest.pb())}
        return generic_handler("google.pubsub.v1.Subscriber", unary, streams)

    async def create_subscription(self, config: Any) -> Any:
        """Create a subscription."""
        return self._broker.create_subscription(config)

    async def get_subscription(self, request: Any) -> Any:
        """Return a subscription."""
        return self._broker.backlog(request.subscription).config

    async def update_subscription(self, request: Any) -> Any:
        """Change the fields of a subscription that the mask names."""
        paths = list(request.update_mask.paths)
        limits.check_mask(paths)
        config = Subscription()
        config.CopyFrom(self._broker.backlog(request.subscription.name).config)
        for path in paths:
            if "." not in path:
                config.ClearField(path)
        field_mask_pb2.FieldMask(paths=paths).MergeMessage(request.subscription, config)
        self._broker.save_subscription(config)
        return config

    async def modify_push_config(self, request: Any) -> Any:
        """Replace the push settings; empty ones make it a pull subscription."""
        config = Subscription()
        config.CopyFrom(self._broker.backlog(request.subscription).config)
        config.push_config.CopyFrom(request.push_config)
        self._broker.save_subscription(config)
        return empty_pb2.Empty()

    async def list_subscriptions(self, request: Any) -> Any:
        """Return a page of a project's subscriptions."""
        prefix = f"{request.project}/subscriptions/"
        names = sorted(name for name in self._broker.backlogs if name.startswith(prefix))
        part, token = page(names, request.page_size, request.page_token)
        return types.ListSubscriptionsResponse.pb()(
            subscriptions=[self._broker.backlogs[name].config for name in part], next_page_token=token
        )

    async def delete_subscription(self, request: Any) -> Any:
        """Delete a subscription and its backlog."""
        self._broker.delete_subscription(request.subscription)
        return empty_pb2.Empty()

    async def pull(self, request: Any) -> Any:
        """Return messages that are ready; wait some seconds for the first unless told to return at once."""
        backlog = self._pulled(request.subscription)
        if request.max_messages <= 0:
            raise invalid("No max_messages specified")
        limit, until = min(request.max_messages, MAX_PULL), time.monotonic() + PULL_WAIT
        taken = backlog.take(limit)
        while not taken and not request.return_immediately and time.monotonic() < until:
            await backlog.wait(max(0.0, until - time.monotonic()))
            taken = backlog.take(limit)
        deadline = backlog.config.ack_deadline_seconds
        return types.PullResponse.pb()(received_messages=[received(backlog, each, deadline) for each in taken])

    async def acknowledge(self, request: Any) -> Any:
        """Forget messages; an id whose deadline has passed is skipped."""
        backlog = self._broker.backlog(request.subscription)
        backlog.ack_leases(_checked(backlog, request.ack_ids))
        return empty_pb2.Empty()

    async def modify_ack_deadline(self, request: Any) -> Any:
        """Move the deadline of leased messages; 0 seconds is a nack."""
        backlog = self._broker.backlog(request.subscription)
        ack_ids = _checked(backlog, request.ack_ids)
        if not 0 <= request.ack_deadline_seconds < limits.ACK_DEADLINES.stop:
            raise invalid("ack_deadline_seconds out of bounds")
        for ack_id in ack_ids:
            backlog.modify_lease(ack_id, request.ack_deadline_seconds)
        return empty_pb2.Empty()

    async def streaming_pull(self, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Send messages as they become ready, up to the stream's limit of unacknowledged ones."""
        first = await anext(aiter(requests), None)
        if first is None:
            raise invalid("No subscription specified")
        backlog = self._pulled(first.subscription)
        deadline = first.stream_ack_deadline_seconds or backlog.config.ack_deadline_seconds
        limit = first.max_outstanding_messages if first.max_outstanding_messages > 0 else DEFAULT_OUTSTANDING
        controls = asyncio.create_task(_follow(requests, backlog))
        out: set[str] = set()
        try:
            while not controls.done():
                out = backlog.leased(out)
                taken = backlog.take(min(limit - len(out), MAX_PULL))
                if taken:
                    messages = [received(backlog, each, deadline) for each in taken]
                    out.update(message.ack_id for message in messages)
                    yield types.StreamingPullResponse.pb()(received_messages=messages)
                else:
                    await backlog.wait(PULL_WAIT)
            controls.result()
        finally:
            controls.cancel()

    def _pulled(self, subscription: str) -> Backlog:
        backlog = self._broker.backlog(subscription)
        if backlog.config.push_config.push_endpoint:
            raise RefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                "This method is not supported for this subscription type.",
            )
        return backlog


async def _follow(requests: AsyncIterator[Any], backlog: Backlog) -> None:
    """Carry out the acknowledgements and deadline changes that a streaming pull sends."""
    async for request in requests:
        if request.ack_ids:
            backlog.ack_leases(_checked(backlog, request.ack_ids))
        pairs = zip(request.modify_deadline_ack_ids, request.modify_deadline_seconds, strict=False)
        for ack_id, deadline in pairs:
            backlog.modify_lease(ack_id, deadline)


def received(backlog: Backlog, delivery: Delivery, deadline: float) -> Any:
    """Lease a delivery, as a ReceivedMessage; attempts are told only with a dead-letter policy."""
    attempt = delivery.failed + 1 if backlog.config.HasField("dead_letter_policy") else 0
    return ReceivedMessage(
        ack_id=backlog.lease(delivery, deadline),
        message=PubsubMessage.FromString(delivery.message.raw),
        delivery_attempt=attempt,
    )


def _checked(backlog: Backlog, ack_ids: Iterable[str]) -> list[str]:
    ack_ids = list(ack_ids)
    if not ack_ids:
        raise invalid("No ack ids specified.")
    for ack_id in ack_ids:
        name, _, number = ack_id.rpartition(":")
        if name != backlog.name or not number.isdecimal():
            raise invalid(f"Invalid ack id (ack_id={ack_id})")
    return ack_ids
