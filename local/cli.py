"""The command line: `echoproof --help`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from local import doctor as diagnosis
from local import screens
from local.client import AnswerError, Client, key_of
from local.operating import letters, operations
from local.operating import pipeline as operated
from local.operating.surroundings import AsJson, print_json
from local.smoke.command import smoke
from shared import recovery
from shared.database import Database
from shared.errors import ConfigError, EchoproofError

app = typer.Typer(
    help="Background operations that survive a second attempt: retries repeat delivery, never effects.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
recovery_app = typer.Typer(help="After a restore of the database to an earlier time.", no_args_is_help=True)
out, err = Console(), Console(stderr=True)

Url = Annotated[str, typer.Option(envvar="ECHOPROOF_URL", help="URL of intake.")]
Tenant = Annotated[str, typer.Option(envvar="ECHOPROOF_TENANT", help="The tenant to act for.")]
Token = Annotated[str | None, typer.Option(envvar="ECHOPROOF_TOKEN", help="ID token, where intake wants one.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port of intake on 127.0.0.1.")]
ConsolePort = Annotated[int, typer.Option(min=1, max=65535, help="Port of the console on 127.0.0.1.")]
LOCAL_URL = "http://127.0.0.1:8080"
LOCAL_TENANT = "shop"

FAILED = 1  # the operation did not succeed, or a check does not hold
UNUSABLE = 2  # the call or the configuration is wrong
INTERRUPTED = 130


@app.command()
def up(
    port: Port = 8080,
    console_port: ConsolePort = 8081,
    data: Annotated[Path, typer.Option(help="Where everything is kept; a later `up` goes on with it.")] = Path(
        ".echoproof"
    ),
    tick: Annotated[float, typer.Option(min=0.5, help="Seconds between calls of relay and reconcile.")] = 2.0,
) -> None:
    """Start the whole pipeline on this machine and keep it running until Ctrl-C."""
    from local.stack import Stack

    def show(what: str) -> None:
        out.print(f"starting {what} …")

    stack = Stack(data.absolute(), port=port, console_port=console_port, tick=tick, progress=show)
    with _stopping_on_signals(), stack:
        screens.show_addresses(out, stack)
        stack.wait()


@app.command()
def demo(
    operations: Annotated[int, typer.Option(min=20, help="Invoices and credit notes to make.")] = 240,
    port: Port = 8080,
    console_port: ConsolePort = 8081,
    outage: Annotated[float, typer.Option(min=0, help="Seconds that Pub/Sub is away in the middle.")] = 20.0,
    data: Annotated[Path | None, typer.Option(help="Keep everything in this folder; by default it is removed.")] = None,
) -> None:
    """Run the main job on real orders, break it on the way, and prove that every effect happened once."""
    from local.demo import PAYMENT_FAULTS, Demo, Faults
    from local.stack import Stack

    with (
        _stopping_on_signals(),
        _folder(data) as folder,
        screens.live_demo(out) as show,
        Stack(
            folder, port=port, console_port=console_port, payment_faults=PAYMENT_FAULTS, progress=show.starting
        ) as stack,
    ):
        out.print(f"watch it at {stack.addresses.console}", highlight=False)
        report = Demo(stack, operations, Faults(outage=outage), show.progress).run()
    screens.show_report(out, report)
    raise typer.Exit(0 if report.holds else FAILED)


@app.command()
def submit(
    files: Annotated[list[Path], typer.Argument(help="Files with a request body each: type, input, options.")],
    url: Url = LOCAL_URL,
    tenant: Tenant = LOCAL_TENANT,
    token: Token = None,
    key: Annotated[str | None, typer.Option(help="Idempotency key; by default from the file's content.")] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the operations to come to rest.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for each.")] = 300.0,
    as_json: AsJson = False,
) -> None:
    """Submit operations; the same file again is the same operation."""
    if key is not None and len(files) > 1:
        raise typer.BadParameter("one key is for one file")
    client, results, failed = Client(url, tenant, token), [], False
    for path in files:
        try:
            body = path.read_bytes()
            submitted = client.submit(body, key or key_of(body))
            if wait and not as_json:
                out.print(f"{path}: {submitted.operation_id}, waiting …", highlight=False)
            found = client.wait(submitted.operation_id, timeout) if wait else submitted.body
        except OSError as error:
            failed, found = True, {"file": str(path), "error": error.strerror}
        except AnswerError as error:
            failed, found = True, {"file": str(path), "error": str(error)}
        else:
            found = {"file": str(path), "new": submitted.new, **found}
            failed = failed or (wait and found["state"] != "succeeded")
        results.append(found)
        if not as_json:
            screens.show_submitted(out, found)
    if as_json:
        print_json(results)
    raise typer.Exit(FAILED if failed else 0)


@app.command()
def status(
    operation_id: Annotated[str, typer.Argument(help="The operation's id, as `submit` printed it.")],
    url: Url = LOCAL_URL,
    tenant: Tenant = LOCAL_TENANT,
    token: Token = None,
    watch: Annotated[bool, typer.Option("--watch", help="Follow it until it comes to rest.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show an operation and its steps; the exit code is 0 unless it failed or needs review."""
    client = Client(url, tenant, token)
    found = client.status(operation_id)
    if watch:
        with screens.live_status(out) as show:
            for found in _follow(client, operation_id):
                show(found)
    if as_json:
        print_json(found)
    elif not watch:
        out.print(screens.operation_table(found))
    raise typer.Exit(FAILED if found["state"] in {"failed", "needs_review"} else 0)


@app.command()
def migrate() -> None:
    """Apply the database migrations that are missing (DATABASE_URL, or the Cloud SQL variables)."""
    from shared.config import DatabaseSettings, load
    from shared.migrate import migrate as apply
    from shared.wiring import connect_function

    (settings,) = load(DatabaseSettings)
    for migration in apply(connect_function(settings)):
        out.print(f"applied {migration.number:04}_{migration.name}")
    out.print("the database is up to date")


@app.command()
def doctor() -> None:
    """Check this machine and the configuration, and say what to do about what is wrong."""
    findings = diagnosis.examine()
    screens.show_findings(out, findings)
    raise typer.Exit(0 if all(finding.level != "problem" for finding in findings) else FAILED)


@recovery_app.command("begin")
def recovery_begin() -> None:
    """After a restore of the database: look every effect up before it is sent, until `recovery end`."""
    with _database() as database:
        unfinished = recovery.begin(database)
    out.print(f"recovery is on; {unfinished} unfinished effects will be looked up first, and every new one")


@recovery_app.command("end")
def recovery_end() -> None:
    """Turn recovery mode off, when what was lost has been resubmitted."""
    with _database() as database:
        was_on = recovery.end(database)
    out.print("recovery is off" if was_on else "recovery was not on")


app.add_typer(letters.app, name="dead-letters")
app.add_typer(operations.app, name="operations")
for command in (operated.stats, operated.outbox, operated.pause, operated.resume, operated.pauses, smoke):
    app.command()(command)
app.add_typer(recovery_app, name="recovery")


def _follow(client: Client, operation_id: str) -> Iterator[dict[str, Any]]:
    from shared.operations import RESTING

    while True:
        found = client.status(operation_id)
        yield found
        if found["state"] in RESTING:
            return
        time.sleep(0.5)


@contextlib.contextmanager
def _database() -> Iterator[Database]:
    """Open the database that the environment names; raises ConfigError, UnavailableError."""
    from shared.config import DatabaseSettings, load
    from shared.wiring import connect_function

    (settings,) = load(DatabaseSettings)
    database = Database(connect_function(settings), size=1)
    try:
        yield database
    finally:
        database.close()


@contextlib.contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    """Give the folder asked for, or one that is removed afterwards; open to the database's own user."""
    if data is not None:
        yield data.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="echoproof-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@contextlib.contextmanager
def _stopping_on_signals() -> Iterator[None]:
    """Let SIGTERM end the block like Ctrl-C does, and ignore further ones while it cleans up."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        err.print("stopping …")
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    yield


def main() -> None:
    """Run the command line; errors are told in a sentence, never as a trace."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    try:
        "".join(sys.argv).encode()
    except UnicodeEncodeError:  # the shell's bytes; nothing that is stored is named by them
        err.print("an argument is not UTF-8", style="red")
        sys.exit(UNUSABLE)
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        err.print("stopped, with everything that was started")
        sys.exit(INTERRUPTED)
    except ConfigError as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(UNUSABLE)
    except EchoproofError as error:
        err.print(str(error), style="red", markup=False, highlight=False)
        sys.exit(FAILED)
