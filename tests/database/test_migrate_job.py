"""The migration job under an owner that is no superuser, on servers of its own: roles belong to a whole server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from local.postgres import Postgres, temporary
from shared.database import Connection, Database, connector
from shared.database_errors import QueryError
from shared.migrate import read
from shared.migrate_job import FORBIDDEN, Changes, RoleError, run
from shared.pipeline import Pipeline
from tests.database.kit import PIPELINE

ROOT = Path(__file__).parents[2]
FUNCTIONS = ("intake", "relay", "reconcile", "dead_letter", "console", "test_only")
USERS = {f"{name.replace('_', '-')}@project.iam": name for name in FUNCTIONS}
MIGRATOR = "migrate@project.iam"


class Cloud:
    """A server with the users of a Cloud SQL instance; `database` makes another database of its owner's."""

    def __init__(self, server: Postgres) -> None:
        self.server = server
        self._admin = Connection(connector(server.url)())
        self._made = 0

    def sql(self, *statements: str) -> None:
        for statement in statements:
            self._admin.execute(statement)

    def rows(self, sql: str) -> list[list[Any]]:
        return list(self._admin.raw.run(sql))

    def database(self, owner: str = "cloudsqlsuperuser") -> str:
        self._made += 1
        self.sql(f"CREATE DATABASE d{self._made} OWNER {owner}")
        return f"d{self._made}"

    def url(self, database: str, user: str = MIGRATOR) -> str:
        return f"postgresql://{user.replace('@', '%40')}@127.0.0.1:{self.server.port}/{database}"

    def run(self, database: str, pipeline: Pipeline, users: Mapping[str, str], user: str = MIGRATOR) -> Changes:
        return run(connector(self.url(database, user)), pipeline, users)

    def roles_of(self, user: str) -> list[str]:
        return [
            name
            for (name,) in self.rows(
                "SELECT r.rolname FROM pg_auth_members m JOIN pg_roles r ON r.oid = m.roleid "
                f"JOIN pg_roles u ON u.oid = m.member WHERE u.rolname = '{user}' ORDER BY 1"
            )
        ]

    def clear(self) -> None:
        """Drop every database and role of a test."""
        for (name,) in self.rows(r"SELECT datname FROM pg_database WHERE datname ~ '^d\d+$'"):
            self.sql(f"DROP DATABASE {name} WITH (FORCE)")
        roles = self.rows("SELECT string_agg(rolname, ', ') FROM pg_roles WHERE rolname ~ '^(echoproof_|owner$)'")
        if roles[0][0] is not None:
            self.sql(f"DROP ROLE {roles[0][0]}")

    def close(self) -> None:
        self._admin.close()


@pytest.fixture
def cloud(server_of_its_own: Cloud) -> Iterator[Cloud]:
    yield server_of_its_own
    server_of_its_own.clear()


@pytest.fixture(scope="module")
def server_of_its_own() -> Iterator[Cloud]:
    server, folder = temporary(fsync="off")
    with server:
        cloud = Cloud(server)
        cloud.sql(
            "CREATE ROLE cloudsqlsuperuser NOLOGIN CREATEROLE CREATEDB",
            f'CREATE ROLE "{MIGRATOR}" LOGIN IN ROLE cloudsqlsuperuser',
            *(f'CREATE ROLE "{user}" LOGIN' for user in USERS),
        )
        yield cloud
        cloud.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE)
    return Pipeline.load(path)


def test_it_migrates_as_the_owner_gives_every_user_its_role_and_then_changes_nothing(
    cloud: Cloud, pipeline: Pipeline
) -> None:
    database = cloud.database()
    changes = cloud.run(database, pipeline, USERS)
    assert changes.migrations == tuple(f"{one.number:04}_{one.name}" for one in read())
    assert set(changes.granted) == {f"{user}: echoproof_{name}" for user, name in USERS.items()}
    assert changes.revoked == ()
    assert cloud.run(database, pipeline, USERS) == Changes((), (), ())

    owner = Connection(connector(cloud.url(database))())
    assert owner.raw.run("SELECT DISTINCT tableowner FROM pg_tables WHERE schemaname = 'public'") == [
        ["cloudsqlsuperuser"]
    ]
    owner.close()
    intake = Database(connector(cloud.url(database, "intake@project.iam")), size=1)
    assert intake.run("find_identity", tenant="shop", type="none", key="none") == []
    with pytest.raises(QueryError, match=FORBIDDEN):
        intake.run("prune_identities", batch=1, kept=1.0, kept_after=1.0)
    intake.close()
    step = Database(connector(cloud.url(database, "test-only@project.iam")), size=1)
    assert step.run("explain_claim", operation_id="00000000-0000-7000-8000-000000000001", step="x", providers=[])
    step.close()


def test_a_user_that_becomes_another_function_loses_the_role_of_the_first(cloud: Cloud, pipeline: Pipeline) -> None:
    database = cloud.database()
    cloud.run(database, pipeline, USERS)
    cloud.sql('GRANT echoproof_actor_review TO "relay@project.iam"')
    cloud.sql('REVOKE echoproof_actor_review FROM "relay@project.iam"')  # by the superuser: not the job's to revoke
    changes = cloud.run(database, pipeline, USERS | {"intake@project.iam": "test_only"})
    assert changes == Changes(
        (), ("intake@project.iam: echoproof_test_only",), ("intake@project.iam: echoproof_intake",)
    )
    assert cloud.roles_of("intake@project.iam") == ["echoproof_test_only"]
    assert cloud.roles_of("relay@project.iam") == ["echoproof_relay"]


def test_a_grant_of_somebody_elses_is_told_and_nothing_changes(cloud: Cloud, pipeline: Pipeline) -> None:
    database = cloud.database()
    cloud.run(database, pipeline, {})
    cloud.sql('GRANT echoproof_console TO "relay@project.iam"')
    with pytest.raises(RoleError, match=r"relay@project\.iam .*echoproof_console"):
        cloud.run(database, pipeline, USERS)
    assert cloud.roles_of("relay@project.iam") == ["echoproof_console"]
    assert cloud.roles_of("intake@project.iam") == []


@pytest.mark.parametrize(
    ("users", "said"),
    [
        ({"nobody@project.iam": "intake"}, r"there is no database user nobody@project\.iam"),
        ({"intake@project.iam": "no_such"}, "no_such, which is no function of this release"),
        ({"intake@project.iam": "every_step"}, "every_step, which is no function of this release"),
        ({MIGRATOR: "intake"}, r"migrate@project\.iam is an administrator"),
        ({"postgres": "intake"}, "postgres is an administrator"),
    ],
)
def test_what_cannot_be_is_told_and_nobody_gets_a_role(
    cloud: Cloud, pipeline: Pipeline, users: dict[str, str], said: str
) -> None:
    with pytest.raises(RoleError, match=said):
        cloud.run(cloud.database(), pipeline, {"console@project.iam": "console"} | users)
    assert cloud.roles_of("console@project.iam") == []


def test_a_step_function_with_a_name_of_ours_is_refused(cloud: Cloud, tmp_path: Path) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(PIPELINE.replace("test_only", "every_step"))
    with pytest.raises(RoleError, match="no step function can be called every_step"):
        cloud.run(cloud.database(), Pipeline.load(path), {})


def test_a_plain_owner_with_createrole_does_as_well(cloud: Cloud, pipeline: Pipeline) -> None:
    cloud.sql("CREATE ROLE owner LOGIN CREATEROLE")
    database = cloud.database("owner")
    cloud.run(database, pipeline, USERS, "owner")
    assert cloud.roles_of("intake@project.iam") == ["echoproof_intake"]
    # another owner on the same server finds the roles there, and may use them but not give them away
    other = cloud.database()
    with pytest.raises(RoleError, match="admin option"):
        cloud.run(other, pipeline, {"intake@project.iam": "relay"})
    assert cloud.run(other, pipeline, USERS).granted == ()


def test_an_owner_without_createrole_is_told(cloud: Cloud, pipeline: Pipeline) -> None:
    cloud.sql("CREATE ROLE owner LOGIN")
    with pytest.raises(RoleError, match=r"0011_roles.*CREATEROLE"):
        cloud.run(cloud.database("owner"), pipeline, USERS, "owner")


def test_jobs_at_once_on_one_database_and_on_several_end_alike(cloud: Cloud, pipeline: Pipeline) -> None:
    databases = [cloud.database() for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(lambda name: cloud.run(name, pipeline, USERS), databases * 2))
    assert sorted(len(changes.migrations) for changes in done) == [0] * 3 + [len(read())] * 3
    assert {user: cloud.roles_of(user) for user in USERS} == {u: [f"echoproof_{name}"] for u, name in USERS.items()}


def test_the_command_ends_well_or_says_what_to_do(cloud: Cloud) -> None:
    database = cloud.database()
    env = {"PATH": os.environ["PATH"], "DATABASE_URL": cloud.url(database), "PYTHONPATH": str(ROOT)}

    def command(roles: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "shared.migrate_job"],
            env=env | {"DATABASE_ROLES": roles},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    assert command('{"intake@project.iam": "intake"}').returncode == 0
    assert cloud.roles_of("intake@project.iam") == ["echoproof_intake"]
    wrong = command("intake=intake")
    assert wrong.returncode == 1
    assert "DATABASE_ROLES" in wrong.stdout + wrong.stderr
    missing = command('{"nobody@project.iam": "intake"}')
    assert missing.returncode == 1
    assert "no database user nobody@project.iam" in missing.stdout + missing.stderr
