"""Each function's role can do its work, and nothing else: by the catalog, by every query, by every grant taken away."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

from pg8000.native import to_statement

from shared import queries
from shared.database_errors import QueryError
from shared.migrate_job import FORBIDDEN
from shared.pipeline import Pipeline
from tests.database import rights
from tests.database.kit import Kit

ROLES = sorted(rights.needs())
ROOT = Path(__file__).parents[2]
STEPS = Pipeline.load(ROOT / "pipeline.yaml").functions
# What a role needs for what a statement sets off: the guard of open effects, next_position(), held_lanes().
SET_OFF = {
    ("intake", "effects"), ("relay", "effects"), ("intake", "operation_positions"), ("intake", "ordering_keys"),
    ("relay", "holds"), ("reconcile", "holds"),
}  # fmt: skip


@contextlib.contextmanager
def acting_as(kit: Kit, role: str) -> Iterator[None]:
    """Act as a role in a transaction that is rolled back."""
    kit.query("BEGIN")
    try:
        kit.query(f"SET LOCAL ROLE echoproof_{role}")
        yield
    finally:
        kit.query("ROLLBACK")


def refused(kit: Kit, name: str) -> bool:
    """Whether the database refuses a query to the current role; it is planned and its rights are checked, not run."""
    sql = to_statement(queries.get(name).sql)[0]
    kit.query("SAVEPOINT before")
    try:
        kit.query(f"EXPLAIN (GENERIC_PLAN) {sql}")
    except QueryError as error:
        if error.sqlstate != FORBIDDEN:
            raise
        kit.query("ROLLBACK TO before")
        return True
    return False


def test_every_query_is_somebodys() -> None:
    known = frozenset[str]().union(*rights.needs().values(), rights.OWNERS, rights.of_files("proof", "roles", "smoke"))
    assert known == set(queries.load())


def test_a_role_can_run_every_query_that_its_function_runs(kit: Kit) -> None:
    for role in ROLES:
        with acting_as(kit, role):
            assert [name for name in sorted(rights.needs()[role]) if refused(kit, name)] == [], role


def test_each_right_of_a_role_is_needed_by_one_of_its_queries(kit: Kit) -> None:
    every_step = rights.rights_of(kit, "every_step")
    superfluous = []
    for role in ROLES:
        for table, privileges in own_rights(kit, role, every_step).items():
            if (role, table) in SET_OFF or table.endswith("()"):
                continue
            for privilege, columns in privileges.items():
                for column in columns.split(", "):
                    what = f"{privilege} ({column}) ON {table}" if column else f"{privilege} ON {table}"
                    if not missed(kit, role, what, table):
                        superfluous.append(f"{role}: {what}")
    assert superfluous == []


def own_rights(kit: Kit, role: str, every_step: rights.Rights) -> rights.Rights:
    """A role's rights; a step's without those that every step has."""
    found = rights.rights_of(kit, role)
    if role not in STEPS:
        return found
    own = {
        table: {name: columns for name, columns in privileges.items() if every_step.get(table, {}).get(name) != columns}
        for table, privileges in found.items()
    }
    return {table: privileges for table, privileges in own.items() if privileges}


def missed(kit: Kit, role: str, what: str, table: str) -> bool:
    """Whether a query of the role is refused once a right of it is taken away."""
    sql = {name: queries.get(name).sql for name in sorted(rights.needs()[role])}
    kit.query("BEGIN")
    try:
        kit.query(f"REVOKE {what} FROM echoproof_{role}")
        kit.query(f"SET LOCAL ROLE echoproof_{role}")
        return any(refused(kit, name) for name in sql if re.search(rf"\b{table}\b", sql[name]))
    finally:
        kit.query("ROLLBACK")


def test_the_document_has_each_roles_rights_no_more_and_no_less(kit: Kit) -> None:
    documented = rights.documented()
    assert set(documented) == set(ROLES)
    every_step = rights.rights_of(kit, "every_step")
    for role in ROLES:
        found = own_rights(kit, role, every_step)
        assert documented[role] == found, f"docs/database-roles.md should have:\n{rights.written(found)}"
