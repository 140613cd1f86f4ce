"""The overview's charts as shapes for an SVG: geometry only, in units of its viewBox; templates draw them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from shared.review.pulse import MINUTES, Minute

WIDTH, HEIGHT = 600.0, 120.0
GAP = 2.0  # between columns
LEAST = 1.5  # height of what is there at all, so that one failure among a thousand is seen
KINDS = {
    "good": ("succeeded",),
    "warn": ("retry", "wait", "handed_back"),
    "bad": ("failed", "exhausted", "unresolved", "abandoned"),
}  # of attempts' outcomes, from the bottom up


@dataclass(frozen=True)
class Rect:
    """One shape; `tone` is its look, `title` what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    tone: str
    title: str


@dataclass(frozen=True)
class Chart:
    """Shapes, what the top of the chart stands for, and how much there is of each kind."""

    rects: tuple[Rect, ...]
    top: int
    counts: dict[str, int]
    since: datetime
    until: datetime

    @property
    def total(self) -> int:
        """How much there is of all kinds together."""
        return sum(self.counts.values())


def throughput(minutes: Sequence[Minute], until: datetime) -> Chart:
    """Draw a column a minute: attempts that ended well, that will be repeated, and that ended badly."""
    first = until.replace(second=0, microsecond=0) - timedelta(minutes=MINUTES - 1)
    columns: dict[int, dict[str, int]] = {}
    for minute in minutes:
        slot = round((minute.start - first).total_seconds() / 60)
        if 0 <= slot < MINUTES:
            columns[slot] = _by_kind(minute.outcomes)
    top = _round_up(max((sum(counts.values()) for counts in columns.values()), default=0))
    rects = [rect for slot, counts in sorted(columns.items()) for rect in _column(slot, counts, top, first)]
    counts = {kind: sum(column[kind] for column in columns.values()) for kind in KINDS}
    return Chart(tuple(rects), top, counts, first, until)


def _by_kind(outcomes: dict[str, int]) -> dict[str, int]:
    return {kind: sum(outcomes.get(outcome, 0) for outcome in known) for kind, known in KINDS.items()}


def _column(slot: int, counts: dict[str, int], top: int, first: datetime) -> list[Rect]:
    width = WIDTH / MINUTES
    when = f"{first + timedelta(minutes=slot):%H:%M} UTC"
    title = f"{when}: {counts['good']} succeeded, {counts['warn']} to be repeated, {counts['bad']} ended badly"
    rects, y = [], HEIGHT
    for kind, count in counts.items():
        if count:
            height = max(HEIGHT * count / top, LEAST)
            y -= height
            rects.append(Rect(slot * width + GAP / 2, y, width - GAP, height, kind, title))
    return rects


def _round_up(most: int) -> int:
    """Return the next of 1, 2, 5, 10, 20, 50, … for the top of an axis."""
    size = 1
    while True:
        for step in (1, 2, 5):
            if step * size >= most:
                return step * size
        size *= 10
