"""Publishes dispatches to Pub/Sub: raw protobuf, one RPC for up to a thousand messages, ids waited for.

The publisher of google-cloud-pubsub batches on threads of its own, which a frozen instance may never run again;
this calls its generated client directly and returns when Pub/Sub has answered.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from shared import envelope
from shared.errors import EchoproofError, RetryableError

MAX_MESSAGES = 1000  # Pub/Sub's limit of messages in one publish request
TIMEOUT = 10.0  # seconds for one RPC of the relay
# Milliseconds between attempts to reconnect: gRPC's own default grows to two minutes, longer than an outage.
CHANNEL_OPTIONS = (("grpc.max_reconnect_backoff_ms", 2000), ("grpc.initial_reconnect_backoff_ms", 200))


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One row of the outbox, as a message: which step of which operation may start.

    `due_at` is when, by the database's clock, for what may not start before; None means now. `published` is how often
    the relay has handed this row over.
    """

    operation_id: UUID
    type: str
    step: str
    dispatch: int
    traceparent: str | None = None
    due_at: datetime | None = field(default=None, compare=False)
    published: int = field(default=0, compare=False)


class PublishError(RetryableError):
    """Pub/Sub did not take the messages; they may or may not have been published."""


class InvalidMessageError(EchoproofError):
    """Pub/Sub called one of the messages invalid; none of the request was published."""


class Publisher:
    """A client for one project, created at its first use and shared by all threads of the instance."""

    def __init__(self, project: str, client: Callable[[], Any] | None = None) -> None:
        self._project = project
        self._create = client or create_client
        self._client: Any = None
        self._lock = threading.Lock()

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = TIMEOUT) -> None:
        """Publish to one topic and wait for the ids, without any retry.

        Raises InvalidMessageError (nothing of that request was published) or PublishError.
        """
        for chunk in _chunks(dispatches):
            self._publish_chunk(topic, chunk, timeout)

    def _publish_chunk(self, topic: str, dispatches: Sequence[Dispatch], timeout: float) -> None:
        from google.api_core.exceptions import GoogleAPIError, InvalidArgument
        from google.auth.exceptions import GoogleAuthError

        try:
            client = self._connected()
            answer = client.publish(request=self._request(topic, dispatches), retry=None, timeout=timeout)
        except InvalidArgument as error:
            raise InvalidMessageError(error.message) from None
        except (GoogleAPIError, GoogleAuthError) as error:
            raise PublishError(f"{type(error).__name__} from topic {topic}") from None
        if len(answer.message_ids) != len(dispatches):
            raise PublishError(f"topic {topic} answered {len(answer.message_ids)} ids for {len(dispatches)} messages")

    def _request(self, topic: str, dispatches: Iterable[Dispatch]) -> Any:
        from google.pubsub_v1.types import PublishRequest, PubsubMessage

        message = PubsubMessage.pb()
        raw = PublishRequest.pb()(
            topic=f"projects/{self._project}/topics/{topic}",
            messages=[
                message(
                    data=envelope.encode(d.operation_id, d.type, d.step, d.dispatch),
                    attributes={"traceparent": d.traceparent} if d.traceparent else None,
                )
                for d in dispatches
            ],
        )
        return PublishRequest.wrap(raw)

    def _connected(self) -> Any:
        if self._client is None:
            with self._lock:
                if self._client is None:
                    self._client = self._create()
        return self._client


def create_client() -> Any:
    """Return a generated Pub/Sub client, of the emulator that PUBSUB_EMULATOR_HOST names if it does."""
    import grpc
    from google.pubsub_v1.services.publisher import PublisherClient
    from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport

    emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
    if emulator:
        channel = grpc.insecure_channel(emulator, options=CHANNEL_OPTIONS)
    else:
        channel = PublisherGrpcTransport.create_channel("pubsub.googleapis.com:443", options=CHANNEL_OPTIONS)
    return PublisherClient(transport=PublisherGrpcTransport(channel=channel))


def _chunks(dispatches: Sequence[Dispatch]) -> Iterator[Sequence[Dispatch]]:
    for start in range(0, len(dispatches), MAX_MESSAGES):
        yield dispatches[start : start + MAX_MESSAGES]
