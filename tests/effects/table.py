"""The table of interruption points: read from docs/effects.md, and written from what was observed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path

OBSERVED = "interruption"  # the property of a test that carries [point, provider, how it ended]
HEAD = "the process dies …"
DOCUMENT = Path(__file__).parents[2] / "docs" / "effects.md"


@cache
def documented() -> dict[str, dict[str, str]]:
    """Return how it ends, by point and provider, as the documentation says."""
    lines = DOCUMENT.read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {HEAD}"))
    providers = _cells(lines[start])[1:]
    table = {}
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        point, *ends = _cells(line)
        table[point] = dict(zip(providers, ends, strict=True))
    return table


def written(observed: Iterable[tuple[str, str, str]]) -> list[str]:
    """Return the table's lines, in the order of the documentation."""
    ends = {(point, provider): end for point, provider, end in observed}
    rows = [[HEAD, *next(iter(documented().values()))]]
    rows += [[point, *(ends.get((point, provider), "–") for provider in row)] for point, row in documented().items()]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _cells(line: str) -> list[str]:
    return [cell.strip().strip("*") for cell in line.strip().strip("|").split("|")]
