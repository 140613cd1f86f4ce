"""The archives run: every function in a clean environment, on the local stack, under its database role."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from local.client import Client
from local.parts import Part
from local.postgres import free_port
from local.signing import Signer
from local.stack import PUSH_ACCOUNT, SCHEDULER_ACCOUNT, Stack
from shared.database import Connection, connector
from shared.migrate import read
from tests.packaging import archive
from tests.stack.kit import folder_for_all, order

PATIENCE = 60.0  # seconds; an operation takes two
TIMEOUT = 30.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # the environment is installed within the first test


class Packaged(Stack):
    """The local stack with each function from its archive, under a Python that has what is deployed and no more."""

    def __init__(self, data: Path, functions: Path, python: Path) -> None:
        super().__init__(data, port=free_port(), tick=0.5, functions=functions)
        self._python = python

    def _part(self, name: str, arguments: list[str], env: dict[str, str] | None = None) -> Part:
        if name not in self._function_names:
            return super()._part(name, arguments, env)
        part = Part(name, [str(self._python), *arguments], env or {}, self.data / f"{name}.log")
        self.parts[name] = part
        part.start()
        return part

    def _function_env(self, name: str) -> dict[str, str]:
        """As on Cloud Run: everything is found beside main.py."""
        return super()._function_env(name) | {"PYTHONPATH": "", "PIPELINE_FILE": ""}


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with folder_for_all() as folder:
        yield folder


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    return archive.environment(folder / "environment")


@pytest.fixture(scope="module")
def functions(folder: Path) -> Path:
    (folder / "functions").mkdir()
    for name in archive.functions():
        archive.unpack(name, folder / "functions")
    return folder / "functions"


@pytest.fixture(scope="module")
def stack(folder: Path, functions: Path, python: Path) -> Iterator[Packaged]:
    stack = Packaged(folder / "data", functions, python)
    with stack:
        yield stack


@pytest.fixture(scope="module")
def signer(stack: Packaged) -> Signer:
    return Signer(stack.data / "cloud")


def call(stack: Packaged, signer: Signer, function: str, account: str, body: bytes = b"{}") -> requests.Response:
    url = stack._url(function)
    token = signer.id_token(account, url)
    return requests.post(url, data=body, headers={"Authorization": f"Bearer {token}"}, timeout=TIMEOUT)


def test_an_invoice_and_a_report_go_through_every_step(stack: Packaged) -> None:
    client = Client(stack.addresses.intake, "shop")
    invoice = client.submit({"type": "invoice.generate", "input": order("packaged-1")}, "packaged-1")
    done = client.wait(invoice.operation_id, PATIENCE)
    assert {step["step"]: step["state"] for step in done["steps"]} == dict.fromkeys(
        ("record", "collect", "render", "notify", "announce"), "succeeded"
    )
    body = (archive.ROOT / "examples" / "report.generate.json").read_bytes()
    report = client.submit(body, "packaged-report")
    assert client.wait(report.operation_id, PATIENCE)["state"] == "succeeded"


def test_every_function_runs_as_its_own_database_user(stack: Packaged) -> None:
    names = stack._function_names
    users = {stack._function_env(name)["DATABASE_URL"].partition("//")[2].partition("@")[0] for name in names}
    assert users == {f"echoproof_local_{name}" for name in names}
    admin = Connection(connector(stack.addresses.database)())
    seen = {
        user for (user,) in admin.raw.run("SELECT DISTINCT usename FROM pg_stat_activity WHERE usename LIKE 'echo%'")
    }
    admin.close()
    assert seen <= users
    assert {"echoproof_local_relay", "echoproof_local_reconcile", "echoproof_local_intake"} <= seen


def test_each_internal_function_answers_its_caller_and_nobody_else(stack: Packaged, signer: Signer) -> None:
    assert "published" in call(stack, signer, "relay", SCHEDULER_ACCOUNT).json()
    assert "requeued" in call(stack, signer, "reconcile", SCHEDULER_ACCOUNT).json()
    assert call(stack, signer, "dead_letter", PUSH_ACCOUNT).json()["state"] == "open"
    for name in stack.pipeline.functions:
        assert call(stack, signer, name, PUSH_ACCOUNT).json()["outcome"] == "malformed"
    for name in ("relay", "reconcile", "dead_letter", *stack.pipeline.functions):
        assert call(stack, signer, name, "stranger@project.iam.gserviceaccount.com").status_code == 403
        assert requests.post(stack._url(name), data=b"{}", timeout=TIMEOUT).status_code == 401


def test_the_console_answers(stack: Packaged) -> None:
    for page in ("/", "/operations", "/dead-letters", "/steps"):
        answer = requests.get(stack.addresses.console + page, timeout=TIMEOUT)
        assert answer.status_code == 200, (page, answer.text)
        assert answer.headers["Content-Type"].startswith("text/html")


def test_the_consoles_archive_runs_the_migrations(stack: Packaged, functions: Path, python: Path) -> None:
    admin = Connection(connector(stack.addresses.database)())
    admin.execute("CREATE DATABASE fresh")
    url = stack.addresses.database.rpartition("/")[0] + "/fresh"
    env = {"PATH": os.environ["PATH"], "DATABASE_URL": url, "DATABASE_ROLES": '{"echoproof_local_intake": "intake"}'}
    command = [str(python), "-m", "shared.migrate_job"]
    done = subprocess.run(
        command, cwd=functions / "console", env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    fresh = Connection(connector(url)())
    assert fresh.raw.run("SELECT count(*) FROM schema_migrations") == [[len(read())]]
    fresh.close()
    admin.close()
