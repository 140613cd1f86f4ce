"""One console process before one database for all of these tests; each test makes operations of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from local.postgres import Postgres
from shared.database import Connection, Database, connector
from tests.console import screens
from tests.console.kit import Iap, Service, service_for
from tests.console.shop import Shop
from tests.effects.till import Bank

_numbers = itertools.count()


@pytest.fixture(scope="session")
def iap() -> Iap:
    return Iap()


@pytest.fixture(scope="session")
def keys_url(iap: Iap) -> Iterator[str]:
    server = iap.server()
    server.start()
    yield server.url
    server.stop()


@contextlib.contextmanager
def cloned(postgres: Postgres) -> Iterator[str]:
    """Give the URL of a database of these tests' own."""
    name = f"console_{os.getpid()}_{next(_numbers)}"
    admin = Connection(connector(postgres.url)())
    admin.execute(f"CREATE DATABASE {name} TEMPLATE template_echoproof")
    yield postgres.url_of(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture(scope="session")
def console_url(postgres: Postgres) -> Iterator[str]:
    with cloned(postgres) as url:
        yield url


@pytest.fixture(scope="module")
def postgres_scene(postgres: Postgres) -> Iterator[str]:
    """URL of a database that a test module fills."""
    with cloned(postgres) as url:
        yield url


@pytest.fixture(scope="session")
def shop(console_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """Steps that pay at a real payment server, on that database."""
    database = Database(connector(console_url), size=4)
    shop = Shop(database, console_url, tmp_path_factory.mktemp("shop"), Bank())
    yield shop
    shop.close()
    database.close()


@pytest.fixture(scope="session")
def service(
    console_url: str, iap: Iap, keys_url: str, shop: Shop, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    folder: Path = tmp_path_factory.mktemp("console")
    service = service_for(console_url, iap, keys_url, shop.path, folder)
    yield service
    service.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A real browser; without one the test is skipped, but never on CI.

    Closed with its module: Playwright's event loop runs in the main thread, where other modules' tests run their own.
    """
    if not screens.CHROMIUM.exists():
        pytest.skip(f"{screens.CHROMIUM} is not here: apt install chromium")
    with screens.browser() as started:
        yield started
