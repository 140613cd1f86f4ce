"""`echoproof smoke`: run every check, a line each; the exit code says whether one failed."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from local.operating.surroundings import PIPELINE_FILE
from local.servers import DATABASE_URL_FILE
from local.smoke import calls, line, rights
from local.smoke.target import GoogleTokens, Target, in_the_cloud, on_this_machine
from local.smoke.verdict import Verdict
from shared.config import DatabaseSettings, load
from shared.database import Database
from shared.errors import ConfigError
from shared.pipeline import Pipeline
from shared.wiring import connect_function

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "report.generate.json"
COLOURS = {"ok": "green", "failed": "red", "not checked": "yellow"}
PATIENCE = 120.0  # seconds for an operation to end: cold instances, and a relay's tick
FAILED = 1

out = Console()


def smoke(
    project: Annotated[str | None, typer.Option(help="Id of the Google Cloud project.")] = None,
    intake_url: Annotated[str | None, typer.Option(help="Terraform's output intake_url.")] = None,
    region: Annotated[str | None, typer.Option(help="The region; intake's URL has it.")] = None,
    tenant: Annotated[str, typer.Option(envvar="ECHOPROOF_TENANT", help="The tenant to act for.")] = "shop",
    impersonate: Annotated[str | None, typer.Option(help="Act as this service account, which intake knows.")] = None,
    database_url: Annotated[str | None, typer.Option(envvar="DATABASE_URL", help="To look at the roles.")] = None,
    body: Annotated[Path, typer.Option(help="The operation to run, twice. It is a real one.")] = EXAMPLE,
    patience: Annotated[float, typer.Option(min=5, help="Seconds for an operation to end.")] = PATIENCE,
    local: Annotated[bool, typer.Option("--local", help="Check the stack that `echoproof up` runs here.")] = False,
    data: Annotated[Path, typer.Option(help="The folder of that stack.")] = Path(".echoproof"),
) -> None:
    """Check a deployment after an apply: who may call, queues, clock, roles, one operation end to end."""
    pipeline = Pipeline.load(os.environ.get("PIPELINE_FILE") or PIPELINE_FILE)
    if local:
        target, database_url = on_this_machine(data), database_url or _local_database(data)
    elif project is None or intake_url is None:
        raise ConfigError(["--project and --intake-url: set both, or --local for the stack on this machine"])
    else:
        target = in_the_cloud(project, intake_url, region, pipeline, GoogleTokens(impersonate))
    failures = 0
    with _opened(database_url) as database:
        for verdict in examine(target, pipeline, database, tenant, json.loads(body.read_bytes()), patience):
            failures += verdict.level == "failed"
            out.print(
                f"[{COLOURS[verdict.level]}]{verdict.level:<11}[/] {escape(verdict.check)}: {escape(verdict.found)}"
            )
    raise typer.Exit(FAILED if failures else 0)


def examine(
    target: Target,
    pipeline: Pipeline,
    database: Database | None,
    tenant: str,
    body: Mapping[str, Any],
    patience: float = PATIENCE,
) -> Iterator[Verdict]:
    """Run every check, one after another; none of them raises for what it finds."""
    yield calls.reachable(target)
    yield calls.tokens(target)
    yield from calls.push_authentication(target)
    yield calls.ingress(target)
    yield line.scheduler(target, "relay")
    yield line.scheduler(target, "reconcile")
    yield line.end_to_end(target, tenant, body, patience)
    yield line.delayed(target, tenant, body, patience)
    yield from rights.roles(database, pipeline)


def _local_database(data: Path) -> str | None:
    file = data / DATABASE_URL_FILE
    return file.read_text().strip() if file.is_file() else None


@contextlib.contextmanager
def _opened(url: str | None) -> Iterator[Database | None]:
    """Give the database of a URL or of the Cloud SQL variables, or None where neither is given."""
    if url is None and "INSTANCE_CONNECTION_NAME" not in os.environ:
        yield None
        return
    (settings,) = load(DatabaseSettings, env=os.environ | ({"DATABASE_URL": url} if url else {}))
    database = Database(connect_function(settings), size=1)
    try:
        yield database
    finally:
        database.close()
