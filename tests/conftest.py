"""One embedded PostgreSQL a test process; each test that asks for it gets a fresh clone of a migrated database."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Generator, Iterator

import hypothesis
import pluggy
import pytest

from local.postgres import Postgres, temporary
from shared.database import Connection, Database, connector
from shared.migrate import migrate

_numbers = itertools.count()
# How fast examples are made depends on what else the machine does; nothing here measures time.
hypothesis.settings.register_profile("steady", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("steady")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """On CI everything that a test may need is installed, so a skipped test is a failure there."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped on CI: {report.longrepr}"


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    server, folder = temporary(fsync="off")
    with server:
        admin = Connection(connector(server.url)())
        admin.execute("CREATE DATABASE template_echoproof")
        admin.close()
        migrate(connector(server.url_of("template_echoproof")))
        yield server
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def database_url(postgres: Postgres) -> Iterator[str]:
    """URL of a database of this test's own, cloned from the migrated template."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    admin = Connection(connector(postgres.url)())
    admin.execute(f"CREATE DATABASE {name} TEMPLATE template_echoproof")
    yield postgres.url_of(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    pool = Database(connector(database_url), size=20)
    yield pool
    pool.close()
