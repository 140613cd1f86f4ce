"""Applies `migrations/NNNN_name.sql` in order, once each, safely when several run at once.

Each file is one transaction under an advisory lock. A file that was applied and then changed is refused: its
checksum is recorded. See docs/decisions/0002.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shared.database import Connection
from shared.errors import EchoproofError

MIGRATIONS = Path(__file__).parent.parent / "migrations"
FILE_NAME = re.compile(r"^(\d{4})_([a-z0-9_]+)\.sql$")
# What would end the one transaction in which a file is applied and recorded. END; is left out: functions have it.
ENDS_TRANSACTION = re.compile(
    r"(?:^|;)\s*(?:BEGIN|START\s+TRANSACTION|COMMIT|ROLLBACK|ABORT)(?:\s+(?:WORK|TRANSACTION|AND\s+(?:NO\s+)?CHAIN))*\s*;",
    re.IGNORECASE | re.MULTILINE,
)
LOCK = 0x6563686F70726F66  # "echoprof" in ASCII: the advisory lock that runners queue on
# Its columns are the runner's contract and never change.
BOOKKEEPING = """
CREATE TABLE IF NOT EXISTS schema_migrations (
    number integer PRIMARY KEY, name text NOT NULL, checksum text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now()
)
"""


class MigrationError(EchoproofError):
    """The migrations cannot be applied."""


@dataclass(frozen=True)
class Migration:
    """One file: its number, name, SQL text and SHA-256."""

    number: int
    name: str
    sql: str
    checksum: str


def read(folder: Path = MIGRATIONS) -> list[Migration]:
    """Return the migrations in order.

    Raises MigrationError for a bad name, a number that is missing or doubled, and a file that would end its
    transaction.
    """
    migrations = []
    for path in sorted(folder.glob("*.sql")):
        match = FILE_NAME.match(path.name)
        if not match:
            raise MigrationError(f"{path.name}: a migration is named NNNN_name.sql")
        text = path.read_text()
        if ENDS_TRANSACTION.search(text):
            raise MigrationError(f"{path.name}: a migration is one transaction, and must neither begin nor end any")
        migrations.append(Migration(int(match[1]), match[2], text, hashlib.sha256(text.encode()).hexdigest()))
    for expected, migration in enumerate(migrations, start=1):
        if migration.number != expected:
            raise MigrationError(f"{migration.number:04}_{migration.name}.sql: number {expected:04} was expected")
    return migrations


def migrate(connect: Callable[[], Any], folder: Path = MIGRATIONS) -> list[Migration]:
    """Apply what is missing and return it.

    Rerunning applies nothing; of two runners at once one waits for the other. Raises MigrationError when an
    applied file has changed or is gone, or when one fails, which then has changed nothing.
    """
    migrations = read(folder)
    connection = Connection(connect())
    try:
        # DDL and the wait for another runner may take longer than a request's statement may.
        connection.execute("SET statement_timeout = 0; SET lock_timeout = 0")
        connection.execute(f"SELECT pg_advisory_lock({LOCK})")
        connection.execute(BOOKKEEPING)
        applied = {row.number: row for row in connection.run("applied_migrations")}
        _check(migrations, applied)
        missing = [migration for migration in migrations if migration.number not in applied]
        for migration in missing:
            _apply(connection, migration)
        return missing
    finally:
        connection.close()  # ends the session, and with it the advisory lock


def _check(migrations: list[Migration], applied: dict[int, Any]) -> None:
    known = {migration.number: migration for migration in migrations}
    for number, row in applied.items():
        if number not in known:
            raise MigrationError(f"the database has migration {number:04}_{row.name}, which this release lacks")
        if known[number].checksum != row.checksum:
            raise MigrationError(f"{number:04}_{row.name}.sql was changed after it was applied: add a new one instead")


def _apply(connection: Connection, migration: Migration) -> None:
    connection.execute("BEGIN")
    try:
        connection.execute(migration.sql)
        connection.run("record_migration", number=migration.number, name=migration.name, checksum=migration.checksum)
        connection.execute("COMMIT")
    except EchoproofError as error:
        raise MigrationError(f"{migration.number:04}_{migration.name}.sql failed: {error}") from error
