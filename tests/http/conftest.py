"""One intake process before one database, with the servers that it needs, for all of these tests."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator

import pytest

from local.postgres import Postgres
from local.pubsub import PubSubServer
from local.signing import CertificateServer, Signer
from shared.database import Connection, Database, connector
from tests.database.kit import Kit, pipeline_in
from tests.http.service import Service, service_for

_numbers = itertools.count()


@pytest.fixture(scope="session")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="session")
def certs_url(signer: Signer) -> Iterator[str]:
    server = CertificateServer(signer)
    server.start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def pubsub() -> Iterator[str]:
    """A Pub/Sub server without topics: what intake publishes is the relay's to publish again."""
    server = PubSubServer()
    yield f"127.0.0.1:{server.start()}"
    server.stop()


@pytest.fixture(scope="session")
def http_url(postgres: Postgres) -> Iterator[str]:
    """URL of a database of these tests' own, not through the proxy."""
    name = f"http_{os.getpid()}_{next(_numbers)}"
    admin = Connection(connector(postgres.url)())
    admin.execute(f"CREATE DATABASE {name} TEMPLATE template_echoproof")
    yield postgres.url_of(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture(scope="session")
def service(
    http_url: str, signer: Signer, certs_url: str, pubsub: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("intake")
    pipeline_in(folder)
    service = service_for(http_url, signer, certs_url, pubsub, folder / "pipeline.yaml", folder)
    yield service
    service.part.terminate()
    service.part.wait_stopped()
    service.proxy.close()


@pytest.fixture(scope="session")
def kit(http_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kit]:
    """The moves of steps on that database."""
    database = Database(connector(http_url), size=4)
    kit = Kit(database, pipeline_in(tmp_path_factory.mktemp("kit")), http_url)
    yield kit
    kit.close()
    database.close()
