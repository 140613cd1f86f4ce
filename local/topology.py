"""Makes the topics, push subscriptions and queues that Terraform makes in the cloud, from the same pipeline.yaml."""

from __future__ import annotations

from collections.abc import Mapping

from google.api_core.exceptions import AlreadyExists, GoogleAPIError
from google.cloud.tasks_v2 import CloudTasksClient
from google.cloud.tasks_v2.services.cloud_tasks.transports import CloudTasksGrpcTransport
from google.cloud.tasks_v2.types import Queue, RateLimits, RetryConfig
from google.protobuf.duration_pb2 import Duration
from google.pubsub_v1.services.publisher import PublisherClient
from google.pubsub_v1.services.publisher.transports import PublisherGrpcTransport
from google.pubsub_v1.services.subscriber import SubscriberClient
from google.pubsub_v1.services.subscriber.transports import SubscriberGrpcTransport
from google.pubsub_v1.types import DeadLetterPolicy, ExpirationPolicy, PushConfig, RetryPolicy, Subscription
from grpc import insecure_channel

from shared import pacing
from shared.errors import UnavailableError
from shared.outbox import DELAYED
from shared.pipeline import Pacing, Pipeline

DEAD_LETTER_TOPIC = "dead-letter"
MAX_DELIVERIES = 100  # only infrastructure failure is nacked, so this is an outage of minutes to hours
ACK_MARGIN = 30  # seconds that the ack deadline, which is the push timeout too, is longer than the step's timeout
TIMEOUT = 10.0  # seconds for each call; a server that has just started takes milliseconds
MIN_BACKOFF, MAX_BACKOFF = 1, 10  # seconds; 10 and 600 in the cloud, shorter here for the developer's patience
_QUEUE_RETRY = RetryConfig(  # as a subscription: the function fails a task for the infrastructure's sake only
    max_attempts=MAX_DELIVERIES,
    min_backoff=Duration(seconds=MIN_BACKOFF),
    max_backoff=Duration(seconds=MAX_BACKOFF),
)


def create(pipeline: Pipeline, project: str, emulator: str, endpoints: Mapping[str, str], push_account: str) -> None:
    """Create what is missing: a topic and a push subscription a step function, and those of the dead letters.

    `endpoints` maps each function's name to its URL. Raises UnavailableError when the server at `emulator` does not
    answer or refuses.
    """
    channel = insecure_channel(emulator)
    publisher = PublisherClient(transport=PublisherGrpcTransport(channel=channel))
    subscriber = SubscriberClient(transport=SubscriberGrpcTransport(channel=channel))
    try:
        _create(pipeline, project, publisher, subscriber, endpoints, push_account)
    except GoogleAPIError as error:
        raise UnavailableError(f"Pub/Sub at {emulator} cannot be set up ({type(error).__name__})") from None
    finally:
        channel.close()


def create_queues(pipeline: Pipeline, project: str, location: str, emulator: str) -> None:
    """Create or update the queue of delayed dispatches and one for each function whose steps go by Cloud Tasks.

    A queue that was kept gets the pacing that the pipeline now has. Raises UnavailableError when the server at
    `emulator` does not answer or refuses.
    """
    parent = f"projects/{project}/locations/{location}"
    channel = insecure_channel(emulator)
    client = CloudTasksClient(transport=CloudTasksGrpcTransport(channel=channel))
    try:
        for name, limits in _queues(pipeline).items():
            queue = Queue(name=f"{parent}/queues/{name}", rate_limits=limits, retry_config=_QUEUE_RETRY)
            client.update_queue(queue=queue, retry=None, timeout=TIMEOUT)  # creates what does not exist
    except GoogleAPIError as error:
        raise UnavailableError(f"Cloud Tasks at {emulator} cannot be set up ({type(error).__name__})") from None
    finally:
        channel.close()


def _queues(pipeline: Pipeline) -> dict[str, RateLimits]:
    """Return each queue's limits; what is not given is Cloud Tasks' own default, 500 a second and 1,000 at a time."""
    queues = {DELAYED: RateLimits()}
    for step in pipeline.steps:
        if step.transport == "tasks":
            pace = step.pacing or Pacing()
            queues[step.topic] = RateLimits(
                max_dispatches_per_second=pace.per_second or 0, max_concurrent_dispatches=pacing.at_once(pace)
            )
    return queues


def _create(
    pipeline: Pipeline,
    project: str,
    publisher: PublisherClient,
    subscriber: SubscriberClient,
    endpoints: Mapping[str, str],
    push_account: str,
) -> None:
    _topic(publisher, project, DEAD_LETTER_TOPIC)
    _subscription(subscriber, project, DEAD_LETTER_TOPIC, endpoints["dead_letter"], push_account, 60, dead_letter=False)
    for function in pipeline.functions:
        longest = max(step.timeout.total_seconds() for step in pipeline.steps_of(function))
        topic = pipeline.steps_of(function)[0].topic
        _topic(publisher, project, topic)
        deadline = min(int(longest) + ACK_MARGIN, 600)
        _subscription(subscriber, project, topic, endpoints[function], push_account, deadline, dead_letter=True)


def _topic(publisher: PublisherClient, project: str, name: str) -> None:
    try:
        publisher.create_topic(name=f"projects/{project}/topics/{name}", retry=None, timeout=TIMEOUT)
    except AlreadyExists:
        return


def _subscription(
    subscriber: SubscriberClient,
    project: str,
    topic: str,
    endpoint: str,
    push_account: str,
    ack_deadline: int,
    *,
    dead_letter: bool,
) -> None:
    token = PushConfig.OidcToken(service_account_email=push_account, audience=endpoint)
    push = PushConfig(push_endpoint=endpoint, oidc_token=token)
    subscription = Subscription(
        name=f"projects/{project}/subscriptions/{topic}",
        topic=f"projects/{project}/topics/{topic}",
        push_config=push,
        ack_deadline_seconds=ack_deadline,
        retry_policy=RetryPolicy(
            minimum_backoff=Duration(seconds=MIN_BACKOFF), maximum_backoff=Duration(seconds=MAX_BACKOFF)
        ),
        expiration_policy=ExpirationPolicy(),
    )
    if dead_letter:
        subscription.dead_letter_policy = DeadLetterPolicy(
            dead_letter_topic=f"projects/{project}/topics/{DEAD_LETTER_TOPIC}", max_delivery_attempts=MAX_DELIVERIES
        )
    try:
        subscriber.create_subscription(request=subscription, retry=None, timeout=TIMEOUT)
    except AlreadyExists:  # a stack that was kept: its functions have new addresses
        subscriber.modify_push_config(subscription=subscription.name, push_config=push, retry=None, timeout=TIMEOUT)
