"""A database login a function on this machine, so that each runs under the role that it has in the cloud."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlsplit

from shared.database import Connection, Transaction, connector
from shared.migrate_job import PLATFORM, give_roles
from shared.pipeline import Pipeline

PREFIX = "echoproof_local_"  # and the function's name


def make_logins(url: str, pipeline: Pipeline) -> dict[str, str]:
    """Make the login of each function on a migrated database, and return each function's URL.

    `url` is its superuser's; the server must trust whoever comes from this machine, as the embedded one does. Logins
    belong to the whole server: those that are there are kept.
    """
    names = sorted({*PLATFORM, *pipeline.functions})
    connection = Connection(connector(url)())
    try:
        connection.execute("BEGIN")
        transaction = Transaction(connection)
        _make_missing(transaction, names)
        give_roles(transaction, pipeline, {PREFIX + name: name for name in names})
        connection.execute("COMMIT")
    finally:
        connection.close()
    return {name: url_of(url, name) for name in names}


def url_of(url: str, function: str) -> str:
    """Return a database's URL for the login of a function."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{PREFIX}{function}@{parts.hostname}:{parts.port}").geturl()


def _make_missing(transaction: Transaction, names: Iterable[str]) -> None:
    for name in names:
        if not transaction.run("find_user", user_name=PREFIX + name):
            transaction.connection.execute(f"CREATE ROLE {PREFIX}{name} LOGIN")  # names are words of pipeline.yaml
