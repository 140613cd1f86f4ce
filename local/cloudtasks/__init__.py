"""An embedded Cloud Tasks: the real gRPC API, rate limits, retries, named tasks, durable on request."""

from local.cloudtasks.server import CloudTasksServer

__all__ = ["CloudTasksServer"]
