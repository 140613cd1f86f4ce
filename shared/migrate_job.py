"""What the deployment's migration job runs: migrations, the roles of new steps, and each database user's role.

`python -m shared.migrate_job` reads the database settings of every function, and DATABASE_ROLES. Running it again
changes nothing. See docs/database-roles.md.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from shared import logs
from shared.config import DatabaseSettings
from shared.database import Connect, Connection, Transaction
from shared.database_errors import QueryError
from shared.errors import EchoproofError
from shared.migrate import LOCK, MIGRATIONS, Migration, MigrationError, migrate
from shared.pipeline import Pipeline
from shared.settings import EnvironmentSettings, from_json, load
from shared.wiring import connect_function

PREFIX = "echoproof_"  # of every role
PLATFORM = frozenset({"console", "dead_letter", "intake", "reconcile", "relay"})  # functions that are no steps
FORBIDDEN = "42501"  # insufficient_privilege
INVALID_NAME = "22023"  # invalid_parameter_value

log = logging.getLogger(__name__)


class RoleError(EchoproofError):
    """A database user cannot be given its role."""


class MigrationSettings(EnvironmentSettings):
    """Which database user is which function's, and the pipeline file that names the step functions."""

    database_roles: Annotated[Mapping[str, str], BeforeValidator(from_json)] = Field(
        default_factory=dict, description='JSON like {"intake@project.iam": "intake"}: database user to function'
    )
    pipeline_file: Path = Field(
        Path(__file__).resolve().parent.parent / "pipeline.yaml", description="the path of a pipeline file"
    )


@dataclass(frozen=True)
class Changes:
    """What a run changed: migrations that it applied, and grants and revocations as `user: role`."""

    migrations: tuple[str, ...]
    granted: tuple[str, ...]
    revoked: tuple[str, ...]


def role_of(function: str) -> str:
    """Return the database role of a function."""
    return PREFIX + function


def run(connect: Connect, pipeline: Pipeline, users: Mapping[str, str], folder: Path = MIGRATIONS) -> Changes:
    """Migrate, make the roles of the pipeline's step functions, and give each user its function's role and no other.

    Roles are given in one transaction: all or none. Raises MigrationError; RoleError, which says what to do, for a user
    that does not exist or is an administrator, an unknown function, and rights that whoever runs this lacks.
    """
    own = as_owner(connect)
    applied = _migrated(own, folder)
    connection = Connection(own())
    try:
        connection.execute("BEGIN")
        granted, revoked = give_roles(Transaction(connection), pipeline, users)
        connection.execute("COMMIT")
    finally:
        connection.close()
    return Changes(tuple(f"{one.number:04}_{one.name}" for one in applied), tuple(granted), tuple(revoked))


def _migrated(connect: Connect, folder: Path) -> list[Migration]:
    try:
        return migrate(connect, folder)
    except MigrationError as error:
        if isinstance(error.__cause__, QueryError) and error.__cause__.sqlstate == FORBIDDEN:
            raise RoleError(
                f"{error}: the user that migrates must own the database and have CREATEROLE; on Cloud SQL, be a member "
                "of cloudsqlsuperuser"
            ) from error
        raise


def as_owner(connect: Connect) -> Connect:
    """Return how to connect as Cloud SQL's administrators when the user is one of them, and else as `connect` does.

    Tables then belong to that role, whoever of them migrates, and CREATEROLE, which is not inherited, holds.
    """

    def connected() -> Any:
        raw = connect()
        connection = Connection(raw)
        try:
            for row in connection.run("find_owner_to_become"):
                connection.execute(f"SET ROLE {row.name}")
        except BaseException:
            connection.close()
            raise
        return raw

    return connected


def give_roles(transaction: Transaction, pipeline: Pipeline, users: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Make missing roles of steps and give each user its own; return what was granted and revoked, as `user: role`."""
    transaction.run("lock_roles", key=LOCK)
    for function in pipeline.functions:
        _make_step_role(transaction, function)
    granted, revoked = [], []
    for user, function in sorted(users.items()):
        if function not in PLATFORM and function not in pipeline.functions:
            raise RoleError(f"DATABASE_ROLES: {user} is to be {function}, which is no function of this release")
        given, taken = _give_role(transaction, user, role_of(function))
        granted += given
        revoked += taken
    return granted, revoked


def _make_step_role(transaction: Transaction, function: str) -> None:
    try:
        transaction.run("make_step_role", function=function)
    except QueryError as error:
        if error.sqlstate == INVALID_NAME:
            raise RoleError(f"no step function can be called {function}: rename it in pipeline.yaml") from None
        if error.sqlstate == FORBIDDEN:
            raise RoleError(
                f"the role {role_of(function)} cannot be made: the user that migrates needs CREATEROLE, and the admin "
                f"option of {PREFIX}every_step, which whoever ran the first migration has"
            ) from None
        raise


def _give_role(transaction: Transaction, user: str, role: str) -> tuple[list[str], list[str]]:
    found = transaction.run("find_user", user_name=user)
    if not found:
        raise RoleError(f"DATABASE_ROLES: there is no database user {user}; make it first")
    if found[0].administrator:
        raise RoleError(f"DATABASE_ROLES: {user} is an administrator of the database; no function may be one")
    extra = [name for name in found[0].roles if name != role]
    missing = [role] if role not in found[0].roles else []
    try:
        for name in extra:
            transaction.run("take_role", user_name=user, role_name=name)
        for name in missing:
            transaction.run("give_role", user_name=user, role_name=name)
    except QueryError as error:
        if error.sqlstate != FORBIDDEN:
            raise
        raise RoleError(
            f"the roles of {user} cannot be changed: the user that migrates needs the admin option of "
            f"{', '.join(extra + missing)}, which whoever made them has"
        ) from None
    return [f"{user}: {name}" for name in missing], [f"{user}: {name}" for name in extra]


def main() -> int:
    """Run the job by the environment's settings; 0 when everything is as it should be."""
    logs.setup()
    try:
        database, settings = load(DatabaseSettings, MigrationSettings)
        pipeline = Pipeline.load(settings.pipeline_file)
        changes = run(connect_function(database), pipeline, settings.database_roles)
    except (EchoproofError, OSError):
        log.exception("the database is not ready")
        return 1
    log.info("the database is ready", extra={"changes": vars(changes)})
    return 0


if __name__ == "__main__":
    sys.exit(main())
