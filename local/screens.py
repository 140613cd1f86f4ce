"""What the command line shows."""

from __future__ import annotations

import contextlib
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from local.servers import DATABASE_URL_FILE
from shared.operations import FINAL

if TYPE_CHECKING:
    from local.demo import Progress, Report
    from local.doctor import Finding
    from local.stack import Stack

COLOURS = {
    "succeeded": "green",
    "failed": "red",
    "needs_review": "red",
    "exhausted": "red",
    "unresolved": "red",
    "running": "cyan",
    "queued": "cyan",
    "cancelled": "yellow",
    "discarded": "yellow",
}
LEVELS = {"ok": "[green]ok[/green]", "note": "[yellow]note[/yellow]", "problem": "[red]problem[/red]"}
TROUBLE = frozenset({"failed", "exhausted", "unresolved"})
EVENTS_SHOWN = 6


def show_addresses(console: Console, stack: Stack) -> None:
    """Say where a stack listens and what to try."""
    addresses = stack.addresses
    table = Table.grid(padding=(0, 2))
    table.add_row("intake", f"{addresses.intake}/v1/tenants/shop/operations")
    table.add_row("console", f"{addresses.console}/")
    table.add_row("database", addresses.database)
    if addresses.sent_log:
        table.add_row("e-mails", f"{addresses.sent_log}/messages")
    table.add_row("logs", str(stack.data))
    console.print("[green]the pipeline is up[/green]; Ctrl-C stops it")
    console.print(table)
    key = "--key order-536365"  # the one that README.md and examples/README.md use: an order is invoiced once
    tries = [f"submit examples/invoice.generate.json {key} --url {addresses.intake} --wait", "stats"]
    file = stack.data / DATABASE_URL_FILE
    elsewhere = file != Path(".echoproof", DATABASE_URL_FILE).absolute() and file.is_file()
    database = f"DATABASE_URL=$(cat {shlex.quote(str(file))}) " if elsewhere else ""
    for environment, command in zip(("", database), tries, strict=True):
        console.print(f"try: {environment}.venv/bin/echoproof {command}", highlight=False, markup=False, soft_wrap=True)


def show_submitted(console: Console, found: dict[str, Any]) -> None:
    """Say in a line what became of a file."""
    if "error" in found:
        console.print(f"[red]{escape(found['file'])}: {escape(str(found['error']))}[/red]")
        return
    seen = "" if found["new"] else " (submitted before)"
    console.print(f"{escape(found['file'])}: {found['id']} {_state(found['state'])}{seen}", highlight=False)
    for step in found.get("steps", []):
        if step["state"] in TROUBLE:
            console.print(f"  {step['step']}: {_state(step['state'])}: {escape(_trouble(step))}", highlight=False)


def operation_table(found: dict[str, Any]) -> RenderableType:
    """Return an operation with its steps as a table."""
    head = f"{found['id']}  {found['type']}  key {escape(found['key'])}  {_state(found['state'])}"
    table = Table("step", "state", "attempt", "started", "finished", "error")
    for step in found.get("steps", []):
        table.add_row(
            step["step"],
            _state(step["state"]),
            str(step["attempt"]),
            _time(step["attempt_started_at"]),
            _time(step["finished_at"]),
            escape(_trouble(step)),
        )
    return Group(Text.from_markup(head), table)


@contextlib.contextmanager
def live_status(console: Console) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show an operation that changes."""
    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(operation_table(found), refresh=True)


class DemoScreen:
    """Shows a demonstration: a line that lives on a terminal, single lines elsewhere."""

    def __init__(self, console: Console, live: Live) -> None:
        self._console = console
        self._live = live
        self._told: list[str] = []
        self._line = ""

    def starting(self, what: str) -> None:
        """Say what is being started."""
        self._console.print(f"starting {what} …")

    def progress(self, progress: Progress) -> None:
        """Show where the run stands."""
        if self._console.is_terminal:
            self._live.update(_progress_panel(progress), refresh=True)
            return
        for event in progress.events[len(self._told) :]:
            self._console.print(f"  * {event}")
            self._told.append(event)
        done = sum(count for state, count in progress.states.items() if state in FINAL)
        line = f"{progress.phase}: {done // 20 * 20} of {progress.total} done"
        if line != self._line:
            self._console.print(f"{progress.phase}: {done} of {progress.total} done", highlight=False)
            self._line = line


@contextlib.contextmanager
def live_demo(console: Console) -> Iterator[DemoScreen]:
    """Open the demonstration's screen."""
    with Live(console=console, auto_refresh=False) as live:
        yield DemoScreen(console, live)


def _progress_panel(progress: Progress) -> RenderableType:
    done = sum(count for state, count in progress.states.items() if state in FINAL)
    states = "  ".join(f"{_state(state)} {count}" for state, count in sorted(progress.states.items()))
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        progress.phase, ProgressBar(total=max(progress.total, 1), completed=done, width=40), f"{done}/{progress.total}"
    )
    sent = f"submissions {progress.submitted}, of which duplicates {progress.duplicates}"
    events = [Text(f"  * {event}", style="yellow") for event in progress.events[-EVENTS_SHOWN:]]
    return Group(bar, Text.from_markup(states), Text(sent), *events)


def show_report(console: Console, report: Report) -> None:
    """Show the proof."""
    table = Table(
        "proven from database, bucket and sent mail", "expected", "found", "", title=f"Orders of {report.source}"
    )
    for check in report.checks:
        verdict = "[green]holds[/green]" if check.holds else "[red]BROKEN[/red]"
        table.add_row(check.claim, str(check.expected), str(check.found), verdict)
    console.print(table)
    console.print("attempts: " + ", ".join(f"{count} {name}" for name, count in sorted(report.attempts.items())))
    refused = Counter(str(rejection.reason) for rejection in report.rejections)
    if refused:
        console.print("orders that are no invoice: " + ", ".join(f"{count} {name}" for name, count in refused.items()))
    verdict = "[green]every effect happened once[/green]" if report.holds else "[red]something is wrong[/red]"
    console.print(f"{verdict} ({report.seconds:.0f} s)", highlight=False)


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Show what the doctor found."""
    table = Table("what", "", "found", "what to do")
    for finding in findings:
        table.add_row(finding.what, LEVELS[finding.level], escape(finding.found), escape(finding.remedy))
    console.print(table)


def _trouble(step: dict[str, Any]) -> str:
    since = f" since {_time(step['unresolved_since'])}" if step.get("unresolved_since") else ""
    return (step.get("error") or step["error_kind"] or "") + since


def _state(state: str) -> str:
    return f"[{COLOURS.get(state, 'white')}]{state}[/]"


def _time(text: str | None) -> str:
    return (text or "")[11:23]
