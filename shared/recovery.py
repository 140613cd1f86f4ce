"""Recovery after a restore of the database to an earlier time: look every effect up before it is sent.

What was sent after the moment that was restored to is in no row any more. The key of an effect is made of the
operation's identity, so a resubmitted operation meets its own effects at the provider.
"""

from __future__ import annotations

from shared.database import Database
from shared.database_errors import ConstraintError
from shared.errors import ConflictError


class RecoveryError(ConflictError):
    """Recovery mode is already on."""


def begin(database: Database) -> int:
    """Turn recovery mode on, before any function runs on the restored database.

    Returns how many unfinished effects will be looked up first; each new one is as well. Raises RecoveryError when
    it is on already.
    """
    try:
        return len(database.run("begin_recovery"))
    except ConstraintError as error:
        if error.constraint == "recovery_one_at_a_time":
            raise RecoveryError from None
        raise


def end(database: Database) -> bool:
    """Turn recovery mode off, when the clients have resubmitted what was lost; returns whether it was on."""
    return bool(database.run("end_recovery"))
