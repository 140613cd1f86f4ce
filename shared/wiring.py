"""Builds what a function works with from its environment, once an instance, with every problem told at start."""

from __future__ import annotations

import functools
import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pg8000.exceptions import DatabaseError, InterfaceError
from werkzeug.wrappers import Request as HttpRequest
from werkzeug.wrappers import Response

from shared import logs
from shared.config import DatabaseSettings, DeliverySettings, ProjectSettings, PushSettings, check_timeouts, load
from shared.database import Connect, Database, connector
from shared.outbox import Outbox
from shared.parcel import MAX_BODY_BYTES
from shared.pipeline import Pipeline
from shared.problems import problem_of
from shared.publisher import Publisher
from shared.tasks import Tasks
from shared.tokens import TokenVerifier

HttpFunction = Callable[[HttpRequest], Response]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Surroundings:
    """The database, pipeline and outbox of one instance, shared by its threads."""

    pipeline: Pipeline
    database: Database
    outbox: Outbox


def surroundings(project: ProjectSettings, settings: DatabaseSettings, delivery: DeliverySettings) -> Surroundings:
    """Build the surroundings; nothing is connected before it is used. Raises ConfigError."""
    pipeline = project.pipeline()
    check_timeouts(settings, pipeline)
    delivery.check(pipeline)
    database = Database(connect_function(settings), settings.pool_size)
    name = project.google_cloud_project
    tasks = Tasks(name, delivery.tasks_location, delivery.tasks_account, delivery.step_urls)
    outbox = Outbox(database, pipeline, Publisher(name), tasks, shortcut=delivery.publish_at_once)
    return Surroundings(pipeline, database, outbox)


def connect_function(settings: DatabaseSettings) -> Connect:
    """Return how connections are opened: by URL, or through the Cloud SQL connector with IAM authentication."""
    timeouts = {
        "statement_timeout": settings.statement_timeout,
        "lock_timeout": settings.lock_timeout,
        "idle_in_transaction_session_timeout": settings.idle_in_transaction_timeout,
    }
    if settings.database_url is not None:
        return connector(settings.database_url.get_secret_value(), timeouts=timeouts)
    return cloud_sql(settings, {name: str(int(t.total_seconds() * 1000)) for name, t in timeouts.items()})


def cloud_sql(settings: DatabaseSettings, startup: dict[str, str], endpoint: str | None = None) -> Connect:
    """Return how connections are opened through one lazily created Cloud SQL connector of this instance.

    Its certificate is renewed when a connection wants one that has expired, not in the background: an instance may be
    suspended for longer than a certificate lives. `endpoint` is another Cloud SQL Admin API, for tests. What the
    connector raises is told as OSError: the database cannot be reached.
    """
    making = threading.Lock()

    @functools.cache
    def shared_connector() -> Any:
        from google.cloud.sql.connector import Connector

        return Connector(
            refresh_strategy="lazy", ip_type="private", enable_iam_auth=True, sqladmin_api_endpoint=endpoint
        )

    def connect() -> Any:
        with making:  # a cache alone lets two threads make two
            connector = shared_connector()
        try:
            return connector.connect(
                settings.instance_connection_name,
                "pg8000",
                user=settings.database_user,
                db=settings.database_name,
                startup_params=startup,
            )
        except (DatabaseError, InterfaceError):
            raise
        except Exception as error:  # of aiohttp, google-auth or its own
            raise ConnectionError(f"Cloud SQL: {type(error).__name__}") from error

    return connect


def internal_function(
    answer: Callable[[Surroundings, bytes, dict[str, str]], dict[str, Any]],
    check: Callable[[Pipeline], None] = lambda _: None,
) -> HttpFunction:
    """Make an HTTP function that only Pub/Sub, Cloud Tasks or Cloud Scheduler may call, by a verified token.

    `check` may refuse the pipeline at start with a ConfigError. `answer` gets the surroundings, the body and the
    headers, and returns what to answer with 200. An error is answered as problem+json: 503 for what may be tried again.
    """
    logs.setup()
    project, database, delivery, push = load(ProjectSettings, DatabaseSettings, DeliverySettings, PushSettings)
    around, verifier = surroundings(project, database, delivery), push.verifier()
    check(around.pipeline)

    def main(request: HttpRequest) -> Response:
        with logs.bind(traceparent=request.headers.get("traceparent")):
            return _guarded(request, around, verifier, answer)

    return main


def _guarded(
    request: HttpRequest,
    around: Surroundings,
    verifier: TokenVerifier,
    answer: Callable[[Surroundings, bytes, dict[str, str]], dict[str, Any]],
) -> Response:
    try:
        verifier.verify(request.headers.get("Authorization"))
        # One byte more than the largest push tells a body that was cut from one that fits.
        body = request.stream.read(MAX_BODY_BYTES + 1)
        result = answer(around, body, dict(request.headers.items()))
    except Exception as error:
        told = problem_of(error)
        if told.status >= 500:
            log.exception("request failed")
        return Response(json.dumps(told.body), status=told.status, headers=told.headers)
    return Response(json.dumps(result) + "\n", content_type="application/json")
