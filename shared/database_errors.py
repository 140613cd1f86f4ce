"""Database errors, translated at the edge: by SQLSTATE and constraint name, never with the values of a row."""

from __future__ import annotations

from typing import Any

from shared.errors import EchoproofError, RetryableError, UnavailableError


class ConnectionLostError(UnavailableError):
    """The connection to the database was lost; whether the statement took effect is not known."""


class DatabaseAwayError(UnavailableError):
    """The database cannot be reached; the statement was not sent."""


class SerializationError(RetryableError):
    """The transaction lost a serialization conflict or deadlock and can be run again."""


class StatementTimeoutError(RetryableError):
    """The statement took longer than its timeout allows."""


class ConstraintError(EchoproofError):
    """A constraint refused the row.

    `constraint` is its name and `sqlstate` the code; the row's values, which the server's message may hold, are
    left out.
    """

    def __init__(self, constraint: str | None, sqlstate: str) -> None:
        super().__init__(f"constraint {constraint or '(unnamed)'} was violated ({sqlstate})")
        self.constraint = constraint
        self.sqlstate = sqlstate


class QueryError(EchoproofError):
    """The database refused a statement; `sqlstate` says why (PostgreSQL, appendix A)."""

    def __init__(self, sqlstate: str) -> None:
        super().__init__(f"the database refused a statement (SQLSTATE {sqlstate})")
        self.sqlstate = sqlstate


# What passes by itself. After each the statement may be run again if it finds its own earlier work: nothing is known of
# it, it was not sent, or it was rolled back.
PASSING = (ConnectionLostError, DatabaseAwayError, StatementTimeoutError)
SERIALIZATION = {"40001", "40P01"}  # serialization_failure, deadlock_detected
TIMEOUTS = {"57014", "55P03"}  # query_canceled by statement_timeout, lock_not_available
# admin_shutdown, crash_shutdown, cannot_connect_now, too_many_connections, idle-in-transaction timeout
UNAVAILABLE = {"57P01", "57P02", "57P03", "53300", "25P03", "57P05"}


def translate(error: Any) -> EchoproofError:
    """Return the error that a pg8000 DatabaseError stands for."""
    fields = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
    sqlstate = str(fields.get("C", "XX000"))
    if sqlstate in SERIALIZATION:
        return SerializationError()
    if sqlstate in TIMEOUTS:
        return StatementTimeoutError()
    if sqlstate in UNAVAILABLE or sqlstate.startswith("08"):
        return ConnectionLostError(f"SQLSTATE {sqlstate}")
    if sqlstate.startswith("23"):
        return ConstraintError(fields.get("n"), sqlstate)
    return QueryError(sqlstate)
