"""What the functions may do in the database, by its catalog: each has its role, and no role what it must not have."""

from __future__ import annotations

from collections.abc import Iterator

from local.smoke.verdict import Verdict, guarded, judged, not_checked
from shared.database import Database
from shared.pipeline import Pipeline

ROLE = "echoproof_{}"
# What would let a function forge another's work: (table, right), and who may have it (docs/database-roles.md).
GUARDED = {
    ("identities", "INSERT"): {"intake"},
    ("operations", "INSERT"): {"intake"},
    ("operations", "DELETE"): {"reconcile"},
    ("attempts", "INSERT"): {"reconcile", "step"},
    ("effects", "INSERT"): {"console", "step"},  # a review renews one
    ("recovery", "INSERT"): set[str](),
    ("schema_migrations", "INSERT"): set[str](),
}


def roles(database: Database | None, pipeline: Pipeline) -> Iterator[Verdict]:
    """Look at the roles of every function; `database` None: it cannot be reached from here."""
    if database is None:
        why = "the database is private: give --database-url from inside its network (docs/deploy.md, Smoke test)"
        yield not_checked("database roles", why)
        return
    functions = ["intake", "relay", "reconcile", "dead_letter", "console", *pipeline.functions]
    yield guarded("database roles exist", lambda: _exist(database, functions))
    yield guarded("database roles are the functions' own", lambda: _own(database, functions))
    yield guarded("database roles can do no more", lambda: _no_more(database, functions, pipeline))


def _exist(database: Database, functions: list[str]) -> Verdict:
    found = {row.role for row in database.run("function_roles")}
    wrong = [f"{ROLE.format(name)} is missing" for name in functions if ROLE.format(name) not in found]
    return judged("database roles exist", wrong, f"{len(functions)} of them")


def _own(database: Database, functions: list[str]) -> Verdict:
    check = "database roles are the functions' own"
    members = database.run("logins_of_function_roles", roles=[ROLE.format(name) for name in functions])
    if not members:
        return not_checked(check, "no login has one: every function connects as the same user here")
    wrong = [f"{row.login} has {len(row.roles)} roles" for row in members if len(row.roles) > 1]
    wrong += [f"{row.login} is an administrator" for row in members if row.administrator]
    had = {role for row in members for role in row.roles}
    wrong += [f"no login has {ROLE.format(name)}" for name in functions if ROLE.format(name) not in had]
    return judged(check, wrong, f"{len(members)} logins with one each, none an administrator")


def _no_more(database: Database, functions: list[str], pipeline: Pipeline) -> Verdict:
    kind = {name: "step" if name in pipeline.functions else name for name in functions}
    asked = [(ROLE.format(n), *what) for what, may in GUARDED.items() for n in functions if kind[n] not in may]
    roles_, tables, rights_ = (list(column) for column in zip(*asked, strict=True))
    held = database.run("rights_held", roles=roles_, tables=tables, rights=rights_)
    wrong = [f"{row.role} may {row.right} {row.object}" for row in held]
    return judged("database roles can do no more", wrong, f"{len(asked)} rights that none of them has")
