"""Servers and endpoints for the tests of the embedded servers."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from local.cloudtasks import CloudTasksServer
from local.signing import Signer
from tests.local.endpoint import Endpoint
from tests.local.tasks import Tasks

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="module")
def tasks() -> Iterator[Tasks]:
    server = CloudTasksServer(signer=Signer())
    yield Tasks(f"127.0.0.1:{server.start()}")
    server.stop()


@pytest.fixture
def name() -> str:
    """A name of this test's own, for queues and paths."""
    return f"case-{next(_numbers)}"
