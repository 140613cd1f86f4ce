"""The database and pipeline that an operator's command works on, who the operator is."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console

from local.servers import DATABASE_URL_FILE
from shared.config import DatabaseSettings, load
from shared.database import Database
from shared.errors import ConfigError
from shared.pipeline import Pipeline
from shared.wiring import connect_function

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]
Actor = Annotated[str, typer.Option(envvar="ECHOPROOF_ACTOR", help="Who decides; by default the user of this shell.")]
Reason = Annotated[str, typer.Option(help="Why: it is kept in the audit.", show_default=False)]

REFUSED = 1  # it was not done, or not all of it
STACK_DATABASE = Path(".echoproof", DATABASE_URL_FILE)  # written by `echoproof up`

LOCAL_WAY = (
    "for the stack of `echoproof up`: run this where its .echoproof is, or set it to what DATA/database-url says"
)
PIPELINE_FILE = Path(__file__).resolve().parents[2] / "pipeline.yaml"

WIDE = 250  # columns where there is no terminal to fit: in a file or a pipe nothing is wrapped

out = Console(width=None if sys.stdout.isatty() else WIDE)


@contextlib.contextmanager
def opened() -> Iterator[tuple[Database, Pipeline]]:
    """Give the database and the pipeline: those of the environment, or of the stack that runs in this folder.

    Raises ConfigError.
    """
    environment = dict(os.environ)
    named = {"DATABASE_URL", "INSTANCE_CONNECTION_NAME"} & environment.keys()
    if not named and STACK_DATABASE.is_file():
        environment["DATABASE_URL"] = STACK_DATABASE.read_text().strip()
    try:
        (settings,) = load(DatabaseSettings, env=environment)
    except ConfigError as error:
        raise ConfigError([*error.problems, LOCAL_WAY]) if not named else error from None
    pipeline = Pipeline.load(environment.get("PIPELINE_FILE") or PIPELINE_FILE)
    database = Database(connect_function(settings), size=1)
    try:
        yield database, pipeline
    finally:
        database.close()


def user() -> str:
    """Return the user of this shell, the default actor."""
    return getpass.getuser()


def uuid_of(text: str) -> UUID:
    """Read an id from the command line; ends the command for anything else."""
    try:
        return UUID(text)
    except ValueError:
        raise typer.BadParameter(f"{text} is not an id: copy one from a list") from None


def print_json(value: Any) -> None:
    """Print a value as JSON, unstyled, for scripts; dataclasses and rows as objects."""
    sys.stdout.write(json.dumps(plain(value), indent=2) + "\n")


def plain(value: Any) -> Any:
    """Return a value in JSON's types."""
    if is_dataclass(value) and not isinstance(value, type):
        return {key: plain(item) for key, item in asdict(value).items()}
    if hasattr(value, "_asdict"):
        return {key: plain(item) for key, item in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, UUID | datetime) else value


def age(seconds: float) -> str:
    """Write a span as people read it: 45 s, 12 min, 3.5 h, 2.1 d."""
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
