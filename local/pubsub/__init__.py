"""An embedded Pub/Sub: the real gRPC API, push, retry and dead-letter policies, durable on request."""

from local.pubsub.server import PubSubServer

__all__ = ["PubSubServer"]
