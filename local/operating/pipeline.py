"""`echoproof stats`, `outbox`, `pause`, `resume`, `pauses`: how the pipeline is, and holding parts of it back."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from local.operating.surroundings import Actor, AsJson, Reason, age, opened, out, plain, print_json, user
from shared import pauses as holding
from shared.review import pulse
from shared.review.pulse import Pulse


class Kind(StrEnum):
    """What can be paused."""

    STEP = "step"
    TENANT = "tenant"
    PROVIDER = "provider"


What = Annotated[Kind, typer.Argument(help="What kind of thing.")]
Name = Annotated[str, typer.Argument(help="TYPE/STEP, a tenant or a provider.")]


def stats(as_json: AsJson = False) -> None:
    """Show what waits and runs, how attempts went in the last hour, and what needs somebody."""
    with opened() as (database, pipeline):
        taken = pulse.take(database, pipeline)
    if as_json:
        print_json(taken)
        return
    out.print(_steps(taken))
    lately = taken.latency
    ended = taken.outcomes
    out.print(f"operations: {taken.in_flight} in flight, {taken.waiting} wait, {taken.needs_review} need a review")
    out.print(f"attempts in the last hour: {', '.join(f'{n} {what}' for what, n in ended.most_common()) or 'none'}")
    out.print(
        f"finished in the last hour: {lately.finished}; from due to done: median {age(lately.p50)},"
        f" 95 % {age(lately.p95)}, 99 % {age(lately.p99)}"
    )
    if taken.unknown_effects:
        out.print(f"unknown effects: {taken.unknown_effects}, the oldest for {age(taken.oldest_unknown_age)}")
    for letters in taken.letters:
        out.print(f"dead letters: {letters.open} {letters.cause}, since {letters.oldest:%Y-%m-%d %H:%M:%S}")
    for circuit in taken.circuits:
        state = "open" if circuit.open_until else "closed"
        out.print(f"circuit of {circuit.provider}: {state}, {circuit.failures} calls in a row without an answer")
    _show_pauses(list(taken.pauses))


def outbox(as_json: AsJson = False) -> None:
    """Show for each step what is due and nobody has claimed, how old it is, and what is due later."""
    with opened() as (database, pipeline):
        taken = pulse.take(database, pipeline)
    if as_json:
        print_json(taken.steps)
        return
    out.print(_steps(taken))


def pause(kind: What, name: Name, reason: Reason, actor: Actor = "") -> None:
    """Hold a step, tenant or provider back: nothing of it starts, nothing fails, nothing is lost."""
    with opened() as (database, pipeline):
        holding.pause(database, pipeline, kind.value, name, actor or user(), reason)
    out.print(f"paused; `echoproof resume {kind.value} {name}` ends it", markup=False)


def resume(kind: What, name: Name) -> None:
    """End a pause; what it held back goes out, usually within a minute or two."""
    with opened() as (database, _):
        holding.resume(database, kind.value, name)
    out.print("resumed")


def pauses(as_json: AsJson = False) -> None:
    """List what is paused."""
    with opened() as (database, _):
        listed = holding.listed(database)
    if as_json:
        print_json(listed)
        return
    if not listed:
        out.print("nothing is paused")
    _show_pauses(listed)


def _show_pauses(listed: list[holding.Pause]) -> None:
    for held in listed:
        when = f"{held.paused_at:%Y-%m-%d %H:%M:%S}"
        out.print(f"paused: {held.kind} {held.name}, by {held.actor} at {when}: {held.reason}", markup=False)


def _steps(taken: Pulse) -> Table:
    table = Table("type", "step", box=None)
    for heading in ("due", "oldest", "later", "running"):
        table.add_column(heading, justify="right")
    for step in taken.steps:
        oldest = age(step.oldest_age) if step.due else ""
        table.add_row(
            *[escape(str(plain(c))) for c in (step.type, step.step, step.due, oldest, step.later, step.running)]
        )
    return table
