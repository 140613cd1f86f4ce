"""`echoproof operations`: find operations of every tenant, see what happened to one, cancel it."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from local.operating.surroundings import AsJson, age, opened, out, print_json, uuid_of
from shared import operations
from shared.intake_reading import STATES
from shared.review import reading
from shared.review.timeline import events

app = typer.Typer(help="Operations of every tenant.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="The operation's id.")]


@app.command("list")
def list_(
    tenant: str | None = None,
    state: Annotated[str | None, typer.Option(help=f"One of {', '.join(sorted(STATES))}.")] = None,
    operation_type: Annotated[str | None, typer.Option("--type")] = None,
    key: Annotated[str | None, typer.Option(help="The caller's Idempotency-Key.")] = None,
    cursor: Annotated[str | None, typer.Option(help="Go on where a list before ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = reading.PAGE_SIZE,
    as_json: AsJson = False,
) -> None:
    """List operations, newest first."""
    if state is not None and state not in STATES:
        raise typer.BadParameter(f"state is one of {', '.join(sorted(STATES))}")
    with opened() as (database, _):
        page = reading.operations(
            database,
            tenant=tenant,
            state=state,
            operation_type=operation_type,
            key=key,
            cursor=uuid_of(cursor) if cursor else None,
            page_size=limit,
        )
    if as_json:
        print_json({"operations": page.items, "cursor": page.cursor})
        return
    table = Table("id", "accepted", "tenant", "type", "key", "state", box=None)
    for row in page.items:
        cells = [str(row.id), f"{row.accepted_at:%Y-%m-%d %H:%M:%S}", row.tenant, row.type, row.key, row.state]
        table.add_row(*[escape(cell) for cell in cells])
    out.print(table if page.items else "no such operation")
    if page.cursor:
        out.print(f"more: --cursor {page.cursor}")


@app.command()
def show(operation: Id, as_json: AsJson = False) -> None:
    """Show one operation with everything that happened to it."""
    with opened() as (database, pipeline):
        found = reading.operation(database, pipeline, uuid_of(operation))
    show_operation(found, as_json=as_json)


@app.command()
def cancel(operation: Id) -> None:
    """Cancel what has not started of an operation, and ask what runs to stop."""
    with opened() as (database, pipeline):
        found = reading.operation(database, pipeline, uuid_of(operation))
        operations.cancel(database, found["tenant"], found["id"])
        state = reading.operation(database, pipeline, found["id"])["state"]
    out.print("cancelled" if state == "cancelled" else f"cancel asked for; the operation is {state}")


def show_operation(found: dict[str, Any], *, as_json: bool) -> None:
    """Print one operation: its steps, and its timeline."""
    if as_json:
        print_json(found)
        return
    out.print(f"{found['id']}  {found['type']}  {found['state']}", markup=False, highlight=False)
    out.print(f"tenant {found['tenant']}, key {found['key']}", markup=False, highlight=False)
    steps = Table("step", "state", "attempts", "failures", "generation", "error", box=None)
    for step in found["steps"]:
        error = ": ".join(filter(None, [step["error_kind"], step["error"]]))
        cells = [step["step"], step["state"], step["attempt"], step["failures"], step["generation"], error]
        steps.add_row(*[escape(str(cell)) for cell in cells])
    out.print(steps)
    line = Table("time", "after", "what", "step", "", "took", box=None)
    for event in events(found):
        after = age((event.at - found["accepted_at"]).total_seconds())
        took = "" if event.seconds is None else age(event.seconds)
        text = f"{event.text}. {event.detail}" if event.detail else event.text
        cells = [f"{event.at:%H:%M:%S.%f}"[:-3], after, event.kind, event.step or "", text, took]
        line.add_row(*[escape(cell) for cell in cells])
    out.print(line)
