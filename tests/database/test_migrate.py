"""Migrations: once each, in order, all or nothing, also with several runners at once."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from local.postgres import Postgres
from shared.database import Connection, connector
from shared.migrate import MIGRATIONS, MigrationError, migrate, read

ROOT = Path(__file__).parents[2]
IMPORTS = (
    "import sys; from pathlib import Path; from shared.database import connector; from shared.migrate import migrate; "
)
SLOW = "CREATE TABLE slow (id int); SELECT pg_sleep(0.5);"
_numbers = itertools.count()


@pytest.fixture
def empty_url(postgres: Postgres) -> Iterator[str]:
    """URL of a database without anything in it."""
    name = f"empty_{next(_numbers)}"
    admin = Connection(connector(postgres.url)())
    admin.execute(f"CREATE DATABASE {name}")
    yield postgres.url_of(name)
    admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
    admin.close()


@pytest.fixture
def connect(empty_url: str) -> Callable[[], Any]:
    return connector(empty_url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "0001_first", "CREATE TABLE first (id int); INSERT INTO first VALUES (1);")
    write(tmp_path, "0002_second", "ALTER TABLE first ADD COLUMN name text;")
    return tmp_path


def write(folder: Path, name: str, sql: str) -> None:
    (folder / f"{name}.sql").write_text(sql)


def query(connect: Callable[[], Any], sql: str) -> list[list[Any]]:
    raw = connect()
    try:
        return list(raw.run(sql) or [])
    finally:
        raw.close()


def tables(connect: Callable[[], Any]) -> set[str]:
    return {row[0] for row in query(connect, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")}


def numbers(connect: Callable[[], Any]) -> list[int]:
    return [row[0] for row in query(connect, "SELECT number FROM schema_migrations ORDER BY number")]


def test_the_release_applies_once_and_again_changes_nothing(connect: Callable[[], Any]) -> None:
    applied = migrate(connect)
    assert [migration.number for migration in applied] == list(range(1, len(list(MIGRATIONS.glob("*.sql"))) + 1))
    before = query(connect, "SELECT number, name, checksum, applied_at FROM schema_migrations ORDER BY number")
    assert migrate(connect) == []
    assert query(connect, "SELECT number, name, checksum, applied_at FROM schema_migrations ORDER BY number") == before
    assert {"identities", "operations", "steps", "outbox", "dead_letters", "invoices"} <= tables(connect)


def test_only_what_is_missing_is_applied(connect: Callable[[], Any], folder: Path) -> None:
    assert [migration.name for migration in migrate(connect, folder)] == ["first", "second"]
    write(folder, "0003_third", "INSERT INTO first VALUES (2, 'two');")
    assert [migration.name for migration in migrate(connect, folder)] == ["third"]
    assert query(connect, "SELECT id, name FROM first ORDER BY id") == [[1, None], [2, "two"]]


def test_runners_at_once_apply_each_migration_once(connect: Callable[[], Any], folder: Path) -> None:
    write(folder, "0003_slow", SLOW)
    with ThreadPoolExecutor(6) as pool:
        applied = list(pool.map(lambda _: migrate(connect, folder), range(6)))
    assert sorted(len(one) for one in applied) == [0, 0, 0, 0, 0, 3]
    assert numbers(connect) == [1, 2, 3]
    assert query(connect, "SELECT id FROM first") == [[1]]


def test_processes_at_once_apply_each_migration_once(connect: Callable[[], Any], empty_url: str, folder: Path) -> None:
    write(folder, "0003_slow", SLOW)
    script = f"{IMPORTS}print(len(migrate(connector(sys.argv[1]), Path(sys.argv[2]))))"
    command = [sys.executable, "-c", script, empty_url, str(folder)]
    runners = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert sorted(runner.communicate(timeout=60)[0].strip() for runner in runners) == ["0", "0", "3"]
    assert [runner.returncode for runner in runners] == [0, 0, 0]
    assert numbers(connect) == [1, 2, 3]


def test_a_runner_that_was_killed_leaves_nothing_and_holds_nobody_up(
    connect: Callable[[], Any], empty_url: str, folder: Path
) -> None:
    write(folder, "0003_long", "CREATE TABLE long (id int); SELECT pg_sleep(60);")
    script = f"{IMPORTS}migrate(connector(sys.argv[1]), Path(sys.argv[2]))"
    runner = subprocess.Popen([sys.executable, "-c", script, empty_url, str(folder)], cwd=ROOT)
    running = "FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)%' AND pid <> pg_backend_pid()"
    while query(connect, f"SELECT count(*) {running}") != [[1]]:
        assert runner.poll() is None
    runner.kill()
    runner.wait()
    # the server notices at its next write to the client; an administrator may do it earlier
    query(connect, f"SELECT pg_terminate_backend(pid) {running}")
    write(folder, "0003_long", "CREATE TABLE long (id int);")
    assert [migration.name for migration in migrate(connect, folder)] == ["long"]


def test_a_file_changed_after_it_was_applied_is_refused(connect: Callable[[], Any], folder: Path) -> None:
    migrate(connect, folder)
    write(folder, "0001_first", "CREATE TABLE first (id bigint);")
    write(folder, "0003_third", "CREATE TABLE third (id int);")
    with pytest.raises(MigrationError, match=r"0001_first\.sql was changed after it was applied"):
        migrate(connect, folder)
    assert tables(connect) == {"schema_migrations", "first"}


def test_a_database_newer_than_the_release_is_refused(connect: Callable[[], Any], folder: Path) -> None:
    write(folder, "0003_third", "CREATE TABLE third (id int);")
    migrate(connect, folder)
    (folder / "0003_third.sql").unlink()
    with pytest.raises(MigrationError, match="the database has migration 0003_third, which this release lacks"):
        migrate(connect, folder)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["0001_a", "0003_c"], "number 0002 was expected"),
        (["0002_b"], "number 0001 was expected"),
        (["0001_a", "0001_b"], "number 0002 was expected"),
        (["0001_a", "2_b"], "a migration is named"),
        (["0001_A"], "a migration is named"),
    ],
)
def test_gaps_doubles_and_bad_names_are_refused_before_anything_runs(
    names: list[str], said: str, connect: Callable[[], Any], tmp_path: Path
) -> None:
    for name in names:
        write(tmp_path, name, "CREATE TABLE never (id int);")
    with pytest.raises(MigrationError, match=said):
        read(tmp_path)
    with pytest.raises(MigrationError, match=said):
        migrate(connect, tmp_path)
    assert tables(connect) == set()


@pytest.mark.parametrize(
    "sql",
    [
        "CREATE TABLE half (id int); INSERT INTO half VALUES ('x');",
        "CREATE TABLE half (id int); SELEC 1;",
        "CREATE TABLE half (id int); CREATE INDEX CONCURRENTLY i ON half (id);",
        "CREATE TABLE half (id int); COMMIT; CREATE TABLE more (id int); SELECT 1 / 0;",
        "CREATE TABLE half (id int);\nrollback work ;",
        "CREATE TABLE half (id int);\n  COMMIT;\nBEGIN;",
    ],
)
def test_a_migration_that_fails_leaves_nothing(sql: str, connect: Callable[[], Any], folder: Path) -> None:
    migrate(connect, folder)
    write(folder, "0003_half", sql)
    with pytest.raises(MigrationError, match="0003_half"):
        migrate(connect, folder)
    assert numbers(connect) == [1, 2]
    assert tables(connect) == {"schema_migrations", "first"}
    write(folder, "0003_half", "CREATE TABLE half (id int);")
    assert [migration.name for migration in migrate(connect, folder)] == ["half"]


def test_a_failure_tells_no_value(connect: Callable[[], Any], folder: Path) -> None:
    write(folder, "0003_half", "INSERT INTO first VALUES ('canary-4711');")
    with pytest.raises(MigrationError) as raised:
        migrate(connect, folder)
    assert "canary" not in str(raised.value)
