"""The real Cloud SQL connector before an instance on this machine: one an instance, its certificate renewed on need."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any
from urllib.parse import urlsplit

import pytest

from shared.config import DatabaseSettings
from shared.database import Connection, Database, Runner, connector
from shared.database_errors import DatabaseAwayError
from shared.migrate_job import Changes, run
from shared.problems import problem_of
from shared.wiring import cloud_sql
from tests.database.kit import pipeline_in
from tests.http.cloudsql import NAME, CloudSql

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8 for itself")

REQUESTS = 50
SPENT = timedelta(minutes=1)  # of life left: the connector wants four minutes to connect within


@pytest.fixture
def instance(tmp_path: Path, database_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CloudSql]:
    instance = CloudSql(tmp_path, urlsplit(database_url).port or 5432)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(instance.credentials))
    yield instance
    instance.close()


@pytest.fixture
def database(instance: CloudSql, database_url: str) -> Iterator[Database]:
    name = urlsplit(database_url).path.lstrip("/")
    settings = DatabaseSettings(instance_connection_name=NAME, database_name=name, database_user="postgres")
    database = Database(cloud_sql(settings, {"statement_timeout": "7000"}, instance.url), size=REQUESTS, timeout=60)
    yield database
    database.close()
    close_connectors()


def close_connectors() -> None:
    for one in connectors():
        one.close()
        one._thread.join()
        one._loop.close()  # which it leaves open


def ask(runner: Runner) -> bool:
    """Read something."""
    return runner.run("find_identity", tenant="shop", type="none", key="none") == []


def connectors() -> list[Any]:
    from google.cloud.sql.connector import Connector

    return [one for one in gc.get_objects() if isinstance(one, Connector)]


def at_once(database: Database) -> None:
    """Ask from so many threads at once, each on a connection of its own."""
    barrier = Barrier(REQUESTS)

    def use(_: int) -> None:
        with database.transaction() as transaction:
            ask(transaction)
            barrier.wait(60)

    with ThreadPoolExecutor(REQUESTS) as pool:
        list(pool.map(use, range(REQUESTS)))


def test_case_34_fifty_requests_after_the_certificate_expired_renew_it_once(
    instance: CloudSql, database: Database
) -> None:
    instance.lifetime = SPENT
    assert ask(database)
    assert instance.refreshes == 1
    database.close()  # its connections died while it was suspended, and so did its certificate
    instance.lifetime = timedelta(hours=1)
    at_once(database)
    assert (len(connectors()), instance.refreshes) == (1, 2)
    database.close()
    at_once(database)
    assert (len(connectors()), instance.refreshes) == (1, 2)


def test_case_34_a_cold_start_under_load_makes_one_connector(instance: CloudSql, database: Database) -> None:
    at_once(database)
    assert (len(connectors()), instance.refreshes) == (1, 1)


def test_the_timeouts_hold_and_each_statement_is_its_own_transaction(instance: CloudSql, database: Database) -> None:
    with database.transaction() as transaction:
        raw = transaction.connection.raw
        assert raw.execute_simple("SHOW statement_timeout").rows == [["7s"]]
    database.run("pause", kind="tenant", name="shop", actor="eva", reason="for a test")
    with database.transaction() as transaction:  # of another connection of the same pool, or none was committed
        assert [row.name for row in transaction.run("list_pauses")] == ["shop"]


def test_the_migration_job_gives_roles_through_the_connector(
    instance: CloudSql, database_url: str, tmp_path: Path
) -> None:
    name = urlsplit(database_url).path.lstrip("/")
    settings = DatabaseSettings(instance_connection_name=NAME, database_name=name, database_user="postgres")
    connect = cloud_sql(settings, {}, instance.url)  # held, so that its connector is there to be closed
    admin = Connection(connector(database_url)())
    admin.execute(f"CREATE ROLE {name}_intake LOGIN")
    try:
        changes = run(connect, pipeline_in(tmp_path), {f"{name}_intake": "intake"})
        assert changes == Changes((), (f"{name}_intake: echoproof_intake",), ())
    finally:
        admin.execute(f"DROP ROLE {name}_intake")
        admin.close()
        close_connectors()


def test_an_admin_api_that_refuses_is_a_database_that_is_away(instance: CloudSql, database: Database) -> None:
    instance.refusing = True
    with pytest.raises(DatabaseAwayError) as told:
        ask(database)
    assert problem_of(told.value).status == 503
    instance.refusing = False
    assert ask(database)
