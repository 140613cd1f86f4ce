"""PostgreSQL through pg8000: a pool an instance, one prepared statement a query and connection.

A pg8000 connection is not thread-safe, so each use takes one from the pool for its duration. Statements come from
`shared/queries/*.sql` by name; a statement outside a transaction is its own transaction in one round trip.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, Protocol, Self, TypeVar
from urllib.parse import unquote, urlsplit

import pg8000.native
from pg8000.converters import timestamptz_in
from pg8000.core import FLUSH_MSG
from pg8000.exceptions import DatabaseError, InterfaceError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.pool import QueuePool

from shared import queries
from shared.database_errors import ConnectionLostError, DatabaseAwayError, QueryError, SerializationError, translate
from shared.errors import UnavailableError

T = TypeVar("T")
Connect = Callable[[], Any]  # opens one pg8000 connection
Row = Any  # a named tuple whose fields are the statement's columns

RETRIES = 5  # attempts at a statement or transaction that lost a serialization conflict or deadlock
RECYCLE = 1800  # seconds; Cloud SQL's client certificates live for an hour
TRUST_IDLE = 5.0  # seconds after which an idle connection is asked whether it lives before it is used
CHECKOUT_TIMEOUT = 5.0  # seconds to wait for a connection before the caller is told to come back
SOCKET_MARGIN = 5.0  # seconds that the socket waits longer than the server would
TIMEOUTS = MappingProxyType(
    {  # shorter than any lease (60 s), longer than any statement of ours
        "statement_timeout": timedelta(seconds=15),
        "lock_timeout": timedelta(seconds=10),
        "idle_in_transaction_session_timeout": timedelta(seconds=15),
    }
)
FAILED_TRANSACTION = "25P02"  # in_failed_sql_transaction
LOST = (
    InterfaceError,
    OSError,
    AttributeError,
    ValueError,
    IndexError,
)  # what pg8000 raises on a dead socket


class Runner(Protocol):
    """What runs a named query: the database (a transaction each) or a transaction."""

    def run(self, name: str, /, **params: Any) -> list[Row]:
        """Run one named query and return its rows."""
        ...


class Connection:
    """One pg8000 connection with its prepared statements; used by one thread at a time."""

    def __init__(self, raw: Any) -> None:
        self.raw = raw
        self.last_used = time.monotonic()
        self.lost = False
        self._prepared: dict[str, tuple[pg8000.native.PreparedStatement, Callable[..., Row]]] = {}
        with contextlib.suppress(OSError, AttributeError):
            raw.register_in_adapter(pg8000.native.TIMESTAMPTZ, _timestamptz)
            raw._usock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw._sock = _Unflushed(raw._sock)

    def run(self, name: str, /, **params: Any) -> list[Row]:
        """Run a named query; raises the errors of `shared.database_errors`."""
        with self._translated():
            statement, row = self._prepared.get(name) or self._prepare(name)
            rows = statement.run(**params)
            return [row(*values) for values in rows or ()]

    def execute(self, sql: str) -> None:
        """Run a statement without parameters or result, such as BEGIN or COMMIT."""
        with self._translated():
            self.raw.execute_simple(sql)

    def close(self) -> None:
        """Close the connection; never raises."""
        self.lost = True
        with contextlib.suppress(*LOST, DatabaseError):
            self.raw.close()

    def _prepare(self, name: str) -> tuple[pg8000.native.PreparedStatement, Callable[..., Row]]:
        statement = pg8000.native.PreparedStatement(self.raw, queries.get(name).sql)
        columns = [column["name"] for column in statement.cols or ()]
        prepared = (statement, namedtuple(name, columns, rename=True) if columns else tuple)
        self._prepared[name] = prepared
        return prepared

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except DatabaseError as error:
            translated = translate(error)
            self.lost = self.lost or isinstance(translated, ConnectionLostError)
            raise translated from None
        except LOST as error:
            if isinstance(error, InterfaceError) and "failed transaction" in str(error):
                raise QueryError(FAILED_TRANSACTION) from None
            self.lost = True
            raise ConnectionLostError(type(error).__name__) from None
        finally:
            self.last_used = time.monotonic()


class _Unflushed:
    """A pg8000 connection's file without its Flush messages: the Sync that follows each makes the server answer.

    With them a statement's answer comes in three parts, each of which wakes this process up.
    """

    def __init__(self, file: Any) -> None:
        self.read, self.flush, self._write = file.read, file.flush, file.write

    def write(self, data: bytes) -> None:
        if data != FLUSH_MSG:
            self._write(data)


def _timestamptz(text: str) -> datetime | str:
    """Read a timestamptz; fifty times as fast as pg8000's strptime, which still reads what only PostgreSQL has."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        read: datetime | str = timestamptz_in(text)  # infinity, BC
        return read


class Transaction:
    """An open transaction on one connection.

    As a context manager it only marks the block that uses it: whoever opened the transaction ends it.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, name: str, /, **params: Any) -> list[Row]:
        """Run a named query inside this transaction."""
        return self.connection.run(name, **params)


class Database:
    """A pool of connections.

    `run` and `in_transaction` repeat what lost a serialization conflict or a deadlock; a lost connection is
    discarded and, unless the caller says that repeating is safe, reported as ConnectionLostError.
    """

    def __init__(self, connect: Callable[[], Any], size: int = 2, timeout: float = CHECKOUT_TIMEOUT) -> None:
        create: Any = lambda: Connection(connect())  # noqa: E731 - the pool asks for no more than close()
        self._pool = QueuePool(
            create,
            pool_size=size,
            max_overflow=0,
            timeout=timeout,
            recycle=RECYCLE,
            reset_on_return=None,
        )
        self._last_loss = float("-inf")

    def run(self, name: str, /, *, repeat_if_lost: bool = False, **params: Any) -> list[Row]:
        """Run one named query as its own transaction, in one round trip.

        `repeat_if_lost` runs it again on another connection when the first died under it; only for statements
        that find their own earlier work. Raises UnavailableError when the database cannot be reached.
        """
        return self._repeated(lambda connection: connection.run(name, **params), repeat_if_lost=repeat_if_lost)

    def in_transaction(self, work: Callable[[Transaction], T], *, repeat_if_lost: bool = False) -> T:
        """Run `work` in a transaction and commit it; on a serialization failure all of it runs again.

        `repeat_if_lost` does so, too, when the connection died under it, perhaps after the commit: only for work
        that finds what it did before.
        """

        def attempt(connection: Connection) -> T:
            with _transaction(connection) as transaction:
                return work(transaction)

        return self._repeated(attempt, repeat_if_lost=repeat_if_lost)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Open a transaction, committed at the end of the block and rolled back when it raises."""
        with self._connection() as connection, _transaction(connection) as transaction:
            yield transaction

    def close(self) -> None:
        """Close every idle connection."""
        self._pool.dispose()

    def _repeated(self, work: Callable[[Connection], T], *, repeat_if_lost: bool) -> T:
        for remaining in reversed(range(RETRIES)):
            try:
                with self._connection() as connection:
                    return work(connection)
            except SerializationError:
                if not remaining:
                    raise
            except ConnectionLostError:
                if not (remaining and repeat_if_lost):
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        pooled = self._check_out()
        try:
            yield pooled.dbapi_connection
        finally:
            if pooled.dbapi_connection.lost:
                self._last_loss = time.monotonic()  # what ended this one has ended others, after a restart all
                pooled.invalidate()
            pooled.close()

    def _check_out(self) -> Any:
        """Take a live connection: one that has idled is asked first, a dead one is replaced."""
        while True:
            try:
                pooled = self._pool.connect()
            except PoolTimeoutError:
                raise DatabaseAwayError("every database connection of this instance is busy") from None
            except DatabaseError as error:
                raise DatabaseAwayError(f"the database refused a connection ({translate(error)})") from None
            except LOST as error:
                raise DatabaseAwayError(f"the database cannot be reached ({type(error).__name__})") from None
            connection: Any = pooled.dbapi_connection
            if connection.last_used > max(self._last_loss, time.monotonic() - TRUST_IDLE):
                return pooled
            try:
                connection.execute("SELECT 1")
            except UnavailableError:
                pooled.invalidate()
            else:
                return pooled


@contextlib.contextmanager
def _transaction(connection: Connection) -> Iterator[Transaction]:
    connection.execute("BEGIN")
    try:
        yield Transaction(connection)
        # The server answers COMMIT of a failed transaction with ROLLBACK and no error; pg8000 raises for it.
        connection.execute("COMMIT")
    except BaseException:
        if not connection.lost:
            with contextlib.suppress(ConnectionLostError):
                connection.execute("ROLLBACK")
        raise


def connector(url: str, *, application: str = "echoproof", timeouts: Mapping[str, timedelta] = TIMEOUTS) -> Connect:
    """Return a function that opens one connection to a `postgresql://` URL.

    Statement, lock and idle-in-transaction timeouts are set on each, shorter than any lease, so that no statement
    of a holder outlives its lease.
    """
    parts = urlsplit(url)
    startup = {name: str(int(timeout.total_seconds() * 1000)) for name, timeout in timeouts.items()}
    longest = max(timeout.total_seconds() for timeout in timeouts.values())

    def connect() -> Any:
        # Its socket is made here, because pg8000 leaves it open when the server refuses the session.
        sock = socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5432), longest + SOCKET_MARGIN)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            return pg8000.native.Connection(
                unquote(parts.username or "postgres"),
                database=unquote(parts.path.lstrip("/")) or "postgres",
                password=unquote(parts.password) if parts.password else None,
                application_name=application,
                startup_params=startup,
                sock=sock,
            )
        except BaseException:
            sock.close()
            raise

    return connect
