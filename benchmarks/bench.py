"""The database that everything is measured on: its own server, fsync on, the real schema, rows prepared beforehand."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pg8000.dbapi

from local.postgres import Postgres, temporary
from shared import queries
from shared.database import Connection, Database, connector
from shared.identity import Request
from shared.migrate import migrate
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

HERE = Path(__file__).parent
TENANT = "bench"
TYPE = "bench.invoice"
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SQL = {query.name: query.sql for query in queries.parse((HERE / "statements.sql").read_text())}
CLIENTS = 4
_LONG = timedelta(seconds=60)  # a statement that prepares twenty thousand rows
ID_PREFIX = "0198f000-0000-7000-8000-"
FIRST_NUMBER = 100_000_000_001  # twelve digits: the end of a prepared operation's id
# No checkpoint within a sample: it would hit one contender and spare the next. fsync stays on.
SETTINGS = {"checkpoint_timeout": "1h", "max_wal_size": "4GB", "fsync": "on"}


@dataclass
class Bench:
    """A migrated database with the usual way's tables beside ours."""

    server: Postgres
    database: Database
    pipeline: Pipeline
    request: Request
    admin: Connection

    def sql(self, name: str, **params: object) -> int:
        """Run a statement of this folder as the administrator and return the first cell of its answer, else 0."""
        rows = self.admin.raw.run(SQL[name], **params)
        return int(rows[0][0]) if rows else 0

    def clear(self) -> None:
        """Empty every table, so that each sample begins with the same database."""
        self.sql("clear")

    def prepare(self, count: int) -> None:
        """Put in `count` operations as acceptance leaves them, each with a first step that may be claimed."""
        self.clear()
        self.sql("prepare_operations", count=count, input=json.dumps(self.request.input), **_fixed())
        self.settle_statistics()

    def prepare_usual(self, count: int) -> None:
        """Put in the same for the usual way."""
        self.clear()
        self.sql("prepare_usual", count=count, input=json.dumps(self.request.input), **_fixed())
        self.settle_statistics()

    def settle_statistics(self) -> None:
        """Vacuum and analyse, so that no plan is made for an empty table and autovacuum has nothing to do."""
        self.admin.execute(SQL["vacuum"])

    def dbapi(self) -> pg8000.dbapi.Connection:
        """Open a connection as the usual way does."""
        return pg8000.dbapi.connect("postgres", host="127.0.0.1", port=self.server.port, database="bench")


def _fixed() -> dict[str, object]:
    return {"prefix": ID_PREFIX, "first": FIRST_NUMBER, "tenant": TENANT, "type": TYPE, "traceparent": TRACEPARENT}


def operation_id(index: int) -> UUID:
    """Id of the prepared operation with this index, counted from 0."""
    return UUID(f"{ID_PREFIX}{FIRST_NUMBER + index}")


def first_dispatch(index: int) -> Dispatch:
    """The message that starts the first step of a prepared operation."""
    return Dispatch(operation_id(index), TYPE, "record", 1, TRACEPARENT)


def timed(clients: int, count: int, work: Callable[[range], None]) -> float:
    """Share indexes 0 to `count` among so many threads and return the seconds from their common start to the last end.

    Raises what a thread raised.
    """
    share = count // clients
    errors: list[BaseException] = []
    barrier = threading.Barrier(clients + 1)

    def run(client: int) -> None:
        barrier.wait()
        try:
            work(range(client * share, (client + 1) * share))
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            errors.append(error)

    threads = [threading.Thread(target=run, args=(client,), daemon=True) for client in range(clients)]
    for thread in threads:
        thread.start()
    barrier.wait()
    started = time.perf_counter()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return time.perf_counter() - started


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """Start a server of its own in a temporary folder and remove both at the end."""
    server, folder = temporary(**SETTINGS)
    try:
        with server:
            root = Connection(connector(server.url)())
            root.execute("CREATE DATABASE bench")
            root.close()
            connect = connector(server.url_of("bench"))
            migrate(connect)
            admin = Connection(connector(server.url_of("bench"), timeouts={"statement_timeout": _LONG})())
            admin.execute((HERE / "usual.sql").read_text())
            database = Database(connect, size=CLIENTS)
            yield Bench(server, database, Pipeline.load(HERE / "pipeline.yaml"), _request(), admin)
            database.close()
            admin.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _request() -> Request:
    example = json.loads((HERE.parent / "examples" / "invoice.generate.json").read_text())
    return Request(TYPE, example["input"])
