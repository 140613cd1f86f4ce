"""The picture of one operation: a bar for each attempt on a common axis, with marks for what else happened.

What takes long and is only waiting (a night until somebody looked) is cut out of the axis, and the cut is marked:
attempts of a second stay visible beside it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from shared.console.charts import Rect
from shared.console.rendering import age
from shared.review.timeline import Event, events, time_of

WIDTH, HEIGHT = 1000.0, 28.0  # of a row's viewBox
BAR, MARK = 6.0, 4.0  # least width of a bar, width of a mark
CUT = 40.0  # width of a gap that is cut
SHORTEST_CUT = 30.0  # seconds
CUT_FROM = 3.0  # times everything that is shorter
MOST_MARKS = 400  # of a row; beyond, marks would only cover each other
OUTCOME_TONES = {"succeeded": "good", "running": "busy", "retry": "warn", "wait": "calm", "handed_back": "calm"}
KIND_TONES = {"effect": "busy", "dead letter": "bad", "review": "hold", "message": "calm"}


@dataclass(frozen=True)
class Row:
    """One step: thin lines while it was due and nobody ran it, bars of its attempts, marks above them."""

    step: str
    state: str
    waits: tuple[Rect, ...]
    bars: tuple[Rect, ...]
    marks: tuple[Rect, ...]
    tried: int


@dataclass(frozen=True)
class Cut:
    """A gap that was cut: where (in percent of the width) and how long it was."""

    percent: float
    x: float
    text: str


@dataclass(frozen=True)
class Picture:
    """The rows, where the axis is cut, and the times of its two ends."""

    rows: tuple[Row, ...]
    cuts: tuple[Cut, ...]
    started: datetime
    ended: datetime


Span = tuple[str, datetime, datetime, str, str]  # step, start, end, outcome, what it says


class Axis:
    """Places times on 0 to WIDTH: straight, but for the gaps that are cut."""

    def __init__(self, times: Sequence[datetime], spans: Sequence[Span]) -> None:
        self._times = sorted(set(times))
        self._places = [0.0]
        self.cuts: list[Cut] = []
        between = list(itertools.pairwise(self._times))
        gaps = [(after - before).total_seconds() for before, after in between]
        cut = _cut_gaps(gaps, [any(s[1] <= before and after <= s[2] for s in spans) for before, after in between])
        shown = sum(gap for gap, is_cut in zip(gaps, cut, strict=True) if not is_cut)
        width = WIDTH - CUT * sum(cut)
        for gap, is_cut in zip(gaps, cut, strict=True):
            step = CUT if is_cut else (width * gap / shown if shown else width / max(len(gaps), 1))
            if is_cut:
                middle = self._places[-1] + CUT / 2
                self.cuts.append(Cut(100 * middle / WIDTH, middle, age(gap)))
            self._places.append(self._places[-1] + step)

    def place(self, at: datetime) -> float:
        """Return where a time is; one between two known times is between their places."""
        index = bisect.bisect_left(self._times, at)
        if index == 0:
            return 0.0
        if index == len(self._times):
            return self._places[-1]
        before, after = self._times[index - 1], self._times[index]
        part = (at - before) / (after - before)
        return self._places[index - 1] + part * (self._places[index] - self._places[index - 1])


def draw(found: dict[str, Any]) -> Picture:
    """Draw what `reading.operation` returns."""
    told = events(found)
    read_at: datetime = found["read_at"]
    started: datetime = found["accepted_at"]
    spans = _spans(found, read_at)
    busy = [at for _, start, end, _, _ in spans for at in (start, end)]
    times = [started, *(event.at for event in told), *busy]
    if found["state"] in ("requested", "running"):
        times.append(read_at)
    axis = Axis(times, spans)
    rows = tuple(_row(step, axis, spans, told) for step in found["steps"])
    return Picture(rows, tuple(axis.cuts), min(times), max(times))


def _spans(found: dict[str, Any], read_at: datetime) -> list[Span]:
    spans = []
    for attempt in found["attempts"]:
        start, end = time_of(attempt["started_at"]), time_of(attempt["ended_at"])
        text = f"attempt {attempt['attempt']}: {attempt['outcome']}, {age((end - start).total_seconds())}"
        spans.append((attempt["step"], start, end, attempt["outcome"], text))
    for step in found["steps"]:
        if step["state"] == "running":
            start = time_of(step["attempt_started_at"])
            text = f"attempt {step['attempt']}: running for {age((read_at - start).total_seconds())}"
            spans.append((step["step"], start, max(read_at, start), "running", text))
    return spans


def _row(step: dict[str, Any], axis: Axis, spans: Sequence[Span], told: Sequence[Event]) -> Row:
    own = [span for span in spans if span[0] == step["step"]]
    bars = [_bar(axis, start, end, outcome, text) for _, start, end, outcome, text in own]
    marks = [
        Rect(min(axis.place(event.at), WIDTH - MARK), 0, MARK, HEIGHT, KIND_TONES[event.kind], event.text)
        for event in told
        if event.step == step["step"] and event.kind in KIND_TONES
    ]
    waits = [_wait(axis, before[2], after[1]) for before, after in itertools.pairwise(own)]
    return Row(
        step["step"], step["state"], tuple(waits[:MOST_MARKS]), tuple(bars[:MOST_MARKS]), tuple(marks[:MOST_MARKS]),
        len(own),
    )  # fmt: skip


def _bar(axis: Axis, start: datetime, end: datetime, outcome: str, text: str) -> Rect:
    x = axis.place(start)
    width = max(axis.place(end) - x, BAR)
    return Rect(min(x, WIDTH - width), 6, width, HEIGHT - 12, OUTCOME_TONES.get(outcome, "bad"), text)


def _wait(axis: Axis, start: datetime, end: datetime) -> Rect:
    x = axis.place(start)
    return Rect(x, HEIGHT / 2 - 1, max(axis.place(end) - x, 0), 2, "wait", "waited")


def _cut_gaps(gaps: Sequence[float], busy: Sequence[bool]) -> list[bool]:
    """Say which gaps are cut: those with nothing going on that are long beside everything that is shorter."""
    shown = sum(gap for gap, is_busy in zip(gaps, busy, strict=True) if is_busy)
    idle = sorted(gap for gap, is_busy in zip(gaps, busy, strict=True) if not is_busy)
    for gap in idle:
        if gap >= SHORTEST_CUT and 0 < shown * CUT_FROM <= gap:
            return [not is_busy and each >= gap for each, is_busy in zip(gaps, busy, strict=True)]
        shown += gap
    return [False] * len(gaps)
