"""How a command shows what a decision would do, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping

import typer

from local.operating.surroundings import REFUSED, out, print_json
from shared.review.plan import Plan


def show_plans(plans: Mapping[str, Plan | str], *, as_json: bool) -> None:
    """Print the dry run of each item; a text stands for one that cannot be found."""
    if as_json:
        print_json([{"item": item, "plan": shown} for item, shown in plans.items()])
        return
    for item, shown in plans.items():
        if isinstance(shown, str):
            out.print(f"{item}: {shown}", markup=False)
            continue
        title = f"{item}: {shown.type}/{shown.step} is {shown.state}, generation {shown.generation}"
        out.print(f"{title}: cannot be replayed: {shown.refusal}" if shown.refusal else title, markup=False)
        for effect in shown.effects:
            out.print(f"  {effect.verdict:8} {effect.name} at {effect.provider}: {effect.why}", markup=False)


def show_report(report: Mapping[str, str | None], done: str, *, as_json: bool) -> None:
    """Say what became of each item; ends the command with 1 unless all were done."""
    if as_json:
        print_json([{"item": item, "error": error} for item, error in report.items()])
    else:
        for item, error in report.items():
            out.print(f"{item}: {error or done}", markup=False)
    if any(report.values()):
        raise typer.Exit(REFUSED)
