"""`echoproof dead-letters`: the review queue, the dry run, and the decisions."""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.markup import escape
from rich.table import Table

from local.operating.operations import show_operation
from local.operating.reports import show_plans, show_report
from local.operating.surroundings import (
    REFUSED,
    Actor,
    AsJson,
    Reason,
    opened,
    out,
    plain,
    print_json,
    user,
    uuid_of,
)
from shared import ijson
from shared.database import Database
from shared.errors import InvalidJsonError, NotFoundError
from shared.pipeline import Pipeline
from shared.review import decide, plan, reading
from shared.review.decide import By, Declared, Seen
from shared.review.plan import Mode, Plan
from shared.steps import MAX_RESULT_BYTES

app = typer.Typer(help="What needs a person: look, try dry, decide.", no_args_is_help=True)


class Shown(StrEnum):
    """Which letters a list has."""

    OPEN = "open"
    CLOSED = "closed"
    ALL = "all"


class How(StrEnum):
    """How a step is replayed."""

    RESUME = "resume"
    RECONCILE_FIRST = "reconcile_first"
    NEW_GENERATION = "new_generation"


Items = Annotated[list[str], typer.Argument(help="Ids of dead letters, or OPERATION/STEP.", metavar="ITEM…")]
Item = Annotated[str, typer.Argument(help="Id of a dead letter, or OPERATION/STEP.")]


@app.command("list")
def list_(
    state: Annotated[Shown, typer.Option(help="Which letters.")] = Shown.OPEN,
    cause: Annotated[str | None, typer.Option(help=f"One of {', '.join(reading.CAUSES)}.")] = None,
    tenant: str | None = None,
    operation_type: Annotated[str | None, typer.Option("--type")] = None,
    step: str | None = None,
    cursor: Annotated[str | None, typer.Option(help="Go on where a list before ended.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000)] = reading.PAGE_SIZE,
    as_json: AsJson = False,
) -> None:
    """List the review queue, newest first."""
    if cause is not None and cause not in reading.CAUSES:
        raise typer.BadParameter(f"cause is one of {', '.join(reading.CAUSES)}")
    states = ("open", "closed") if state is Shown.ALL else (state.value,)
    with opened() as (database, _):
        page = reading.letters(
            database,
            states=states,
            cause=cause,
            tenant=tenant,
            operation_type=operation_type,
            step=step,
            cursor=uuid_of(cursor) if cursor else None,
            page_size=limit,
        )
    if as_json:
        print_json({"dead_letters": page.items, "cursor": page.cursor})
        return
    table = Table("id", "opened", "cause", "operation", "step", "error", "what became of it", box=None)
    for letter in page.items:
        where = f"{letter.operation_id}" if letter.operation_id else "–"
        error = ": ".join(filter(None, [letter.error_kind, letter.error]))[:80]
        cells = [str(letter.id), f"{letter.opened_at:%Y-%m-%d %H:%M:%S}", letter.cause, where, letter.step or "–"]
        table.add_row(*[escape(cell) for cell in [*cells, error, letter.verdict]])
    filtered = state is not Shown.OPEN or cause or tenant or operation_type or step or cursor
    out.print(table if page.items else "no such letter" if filtered else "nothing needs a person")
    if page.cursor:
        out.print(f"more: --cursor {page.cursor}")


@app.command()
def show(item: Item, as_json: AsJson = False) -> None:
    """Show one letter and everything that happened to its operation."""
    with opened() as (database, pipeline):
        operation_id, _ = _target(database, item, required=False)
        if operation_id is not None:
            show_operation(reading.operation(database, pipeline, operation_id), as_json=as_json)
            return
        letter = reading.letter(database, uuid_of(item))
    if as_json:
        print_json(letter)
        return
    for name, value in letter.items():
        if value not in (None, []):
            out.print(f"{name}: {plain(value)}", markup=False, highlight=False)


@app.command()
def replay(
    items: Items,
    reason: Annotated[str, typer.Option(help="Why: it is kept in the audit; a dry run needs none.")] = "",
    mode: Annotated[How, typer.Option(help="How its effects are treated.")] = How.RESUME,
    renew: Annotated[list[str] | None, typer.Option(help="An effect that gets a fresh key (new_generation).")] = None,
    lift_deadline: Annotated[bool, typer.Option(help="Take an operation's passed deadline away.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would happen, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Let steps run again; shows first what would be sent, and asks."""
    how: Mode = mode.value
    if not (reason or dry_run):
        raise typer.BadParameter("say why with --reason, or look first with --dry-run")
    with opened() as (database, pipeline):
        by = By(actor or user(), "a dry run" if dry_run else reason)
        plans: dict[str, Plan | str] = {}
        for item in items:
            try:
                target = _step(database, item)
                plans[item] = plan.dry_run(database, pipeline, *target, how, renew or [], lift_deadline=lift_deadline)
            except NotFoundError as error:
                plans[item] = str(error)
        if dry_run:
            show_plans(plans, as_json=as_json)
            raise typer.Exit(REFUSED if any(isinstance(p, str) or p.refusal for p in plans.values()) else 0)
        if not yes:
            show_plans(plans, as_json=False)
            _confirm(f"Replay {sum(isinstance(p, Plan) and not p.refusal for p in plans.values())} of {len(items)}?")
        report: dict[str, str | None] = {}
        for item, shown in plans.items():
            if isinstance(shown, str):
                report[item] = shown
                continue
            seen = Seen(shown.generation, shown.ledger_version)
            report[item] = _tried(
                decide.replay, database, pipeline, shown.operation_id, shown.step, seen, by,
                mode=how, renew=renew or [], lift_deadline=lift_deadline,
            )  # fmt: skip
    show_report(report, "queued", as_json=as_json)


@app.command()
def resolve(
    item: Item,
    evidence: Annotated[str, typer.Option(help="How you know; it is kept in the audit.", show_default=False)],
    happened: Annotated[
        list[str] | None, typer.Option(help="An open effect that happened: NAME or NAME=PROVIDER'S ID.")
    ] = None,
    answer: Annotated[
        list[str] | None, typer.Option(help="What the provider answered, should the step run again: NAME=JSON OBJECT.")
    ] = None,
    absent: Annotated[list[str] | None, typer.Option(help="An open effect that did not happen: NAME.")] = None,
    result: Annotated[str | None, typer.Option(help="The step's result, a JSON object.")] = None,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Settle a step by evidence: it is done, or an effect of it is known not to have happened."""
    declared = {name: Declared(happened=False) for name in absent or []}
    answers = {name: _object(given, "--answer") for name, _, given in (text.partition("=") for text in answer or [])}
    for text in happened or []:
        name, _, reference = text.partition("=")
        declared[name] = Declared(happened=True, reference=reference or None, response=answers.pop(name, None))
    if answers:
        raise typer.BadParameter(f"--answer is of an effect that --happened names: {', '.join(sorted(answers))}")
    with opened() as (database, pipeline):
        by = By(actor or user(), evidence)
        operation_id, step = _step(database, item)
        shown = plan.dry_run(database, pipeline, operation_id, step)
        seen = Seen(shown.generation, shown.ledger_version)
        decide.resolve(
            database, pipeline, operation_id, step, seen, by, result=_object(result, "--result"), effects=declared
        )
    show_report({item: None}, "recorded" if absent else "resolved", as_json=as_json)


@app.command()
def discard(
    items: Items,
    reason: Reason,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    actor: Actor = "",
    as_json: AsJson = False,
) -> None:
    """Give steps up for good (their operations have failed), or close letters that belong to none."""
    for item in items:
        uuid_of(item.partition("/")[0])  # before the first is given up: a typing error ends the command
    if not yes:
        _confirm(f"Give {len(items)} up for good?")
    with opened() as (database, pipeline):
        by = By(actor or user(), reason)
        report = {item: _tried(_discard, database, pipeline, item, by) for item in items}
    show_report(report, "discarded", as_json=as_json)


@app.command()
def note(item: Item, text: Annotated[str, typer.Argument(help="What whoever looks next should know.")],
         actor: Actor = "") -> None:  # fmt: skip
    """Write something down beside a letter."""
    with opened() as (database, _):
        operation_id, step = _target(database, item, required=False)
        letter = None if "/" in item else uuid_of(item)
        decide.note(database, By(actor or user(), text), operation_id=operation_id, step=step, dead_letter_id=letter)
    out.print("noted")


def _discard(database: Database, pipeline: Pipeline, item: str, by: By) -> None:
    operation_id, step = _target(database, item, required=False)
    if operation_id is None or step is None:
        decide.discard_letter(database, uuid_of(item), by)
        return
    shown = plan.dry_run(database, pipeline, operation_id, step)
    decide.discard(database, pipeline, operation_id, step, Seen(shown.generation, shown.ledger_version), by)


def _target(database: Database, item: str, *, required: bool = True) -> tuple[UUID | None, str | None]:
    """Find the step that an item stands for; raises NotFoundError."""
    if "/" in item:
        operation, _, step = item.partition("/")
        return uuid_of(operation), step
    letter = reading.letter(database, uuid_of(item))
    if required and letter["step"] is None:
        raise NotFoundError("the letter belongs to no step: it can only be discarded or noted")
    return letter["operation_id"], letter["step"]


def _step(database: Database, item: str) -> tuple[UUID, str]:
    operation_id, step = _target(database, item)
    if operation_id is None or step is None:
        raise NotFoundError("the letter belongs to no step")
    return operation_id, step


def _object(text: str | None, option: str) -> dict[str, Any] | None:
    if text is None:
        return None
    try:
        value = ijson.parse(text.encode(), max_bytes=MAX_RESULT_BYTES)
    except InvalidJsonError as error:
        raise typer.BadParameter(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise typer.BadParameter(f'{option} is a JSON object, like {{"number": 7}}')
    return value


def _tried(act: Any, *arguments: Any, **options: Any) -> str | None:
    (item,) = decide.each([UUID(int=0)], lambda _: act(*arguments, **options))
    return item.error


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter("this is not a terminal to ask at: add --yes")
    typer.confirm(question, abort=True)
