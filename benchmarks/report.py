"""The table, and the same as JSON."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Contender, Outcome


def table(outcomes: Iterable[Outcome]) -> Table:
    """Lay out every contender with its median rate and its ratios; the aim stands in the row that is ours."""
    table = Table(title="Medians; × is the median of the rounds' own ratios")
    for heading in ("work", "a second", "slowest–fastest", "× usual", "× floor", "aim"):
        table.add_column(heading, justify="left" if heading in {"work", "aim"} else "right")
    for outcome in outcomes:
        table.add_section()
        table.add_row(f"[bold]{outcome.comparison.title}")
        for contender in outcome.comparison.contenders:
            table.add_row(*_row(outcome, contender))
    return table


def _row(outcome: Outcome, contender: Contender) -> list[str]:
    rates = outcome.rates[contender.name]
    return [
        f"  {contender.name}",
        f"{median(rates):,.0f}",
        f"{min(rates):,.0f}–{max(rates):,.0f}",
        _times(outcome.ratio(contender, "usual")),
        _times(outcome.ratio(contender, "floor")),
        verdict(outcome) if contender.role == "ours" else "",
    ]


def _times(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def verdict(outcome: Outcome) -> str:
    """Say what was aimed at and whether it was reached; empty where there is no aim."""
    aim = outcome.comparison.aim
    ours = next(c for c in outcome.comparison.contenders if c.role == "ours")
    reached = outcome.ratio(ours, aim.of) if aim else None
    if aim is None or reached is None:
        return ""
    return f"≥ {aim.at_least} × {aim.of}: {'reached' if reached >= aim.at_least else 'SHORT'}"


def document(outcomes: Iterable[Outcome], rounds: int, seconds: float) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "rounds": rounds,
        "seconds": seconds,
        "cpus": os.cpu_count(),
        "python": platform.python_version(),
        "comparisons": [
            {
                "name": outcome.comparison.name,
                "title": outcome.comparison.title,
                "verdict": verdict(outcome),
                "contenders": [
                    {
                        "name": contender.name,
                        "role": contender.role,
                        "per_second": median(outcome.rates[contender.name]),
                        "rates": outcome.rates[contender.name],
                        "times_usual": outcome.ratio(contender, "usual"),
                        "times_floor": outcome.ratio(contender, "floor"),
                    }
                    for contender in outcome.comparison.contenders
                ],
            }
            for outcome in outcomes
        ],
    }


def show(outcomes: Iterable[Outcome]) -> None:
    """Print the table, as wide as it needs where the output is no terminal."""
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table(outcomes))
