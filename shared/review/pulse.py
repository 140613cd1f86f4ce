"""The pipeline's pulse: what waits and runs for each step, how attempts went lately, and what needs somebody."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from shared import circuits, pauses
from shared.circuits import Circuit
from shared.database import Database
from shared.pauses import Pause
from shared.pipeline import Pipeline

MINUTES = 60  # how far back "lately" goes


@dataclass(frozen=True)
class StepPulse:
    """One step: dispatches due and unclaimed, the age of the oldest (seconds), due later, and attempts that run."""

    type: str
    step: str
    due: int
    oldest_age: float
    later: int
    running: int


@dataclass(frozen=True)
class Minute:
    """The attempts that ended in one minute, by outcome."""

    start: datetime
    outcomes: dict[str, int]


@dataclass(frozen=True)
class Latency:
    """Seconds from due to finished, of the operations that succeeded lately."""

    finished: int
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True)
class OpenLetters:
    """Open review rows of one cause."""

    cause: str
    open: int
    oldest: datetime


@dataclass(frozen=True)
class Pulse:
    """Everything an overview shows; ages in seconds."""

    steps: tuple[StepPulse, ...]
    minutes: tuple[Minute, ...]
    latency: Latency
    waiting: int
    in_flight: int
    needs_review: int
    unknown_effects: int
    oldest_unknown_age: float
    letters: tuple[OpenLetters, ...]
    pauses: tuple[Pause, ...]
    circuits: tuple[Circuit, ...]
    taken_at: datetime

    @property
    def outcomes(self) -> Counter[str]:
        """Attempts that ended lately, by outcome."""
        return sum((Counter(minute.outcomes) for minute in self.minutes), Counter())


def take(database: Database, pipeline: Pipeline, minutes: int = MINUTES) -> Pulse:
    """Read the pulse; every step of the pipeline is in it, and those that are only in the database too."""
    latency = database.run("latency_lately", repeat_if_lost=True, minutes=minutes)[0]
    unfinished = database.run("count_unfinished", repeat_if_lost=True)[0]
    unknown, oldest = database.run("effects_pulse", repeat_if_lost=True)[0]
    return Pulse(
        _steps(database, pipeline),
        _minutes(database, minutes),
        Latency(*latency),
        unfinished.waiting,
        unfinished.in_flight,
        unfinished.needs_review,
        unknown,
        oldest,
        tuple(OpenLetters(*row) for row in database.run("count_open_dead_letters", repeat_if_lost=True)),
        tuple(pauses.listed(database)),
        tuple(circuits.listed(database)),
        unfinished.taken_at,
    )


def _steps(database: Database, pipeline: Pipeline) -> tuple[StepPulse, ...]:
    found = {(row.type, row.step): StepPulse(*row) for row in database.run("backlog_by_step", repeat_if_lost=True)}
    known = [(step.type, step.name) for step in pipeline.steps]
    idle = {which: StepPulse(*which, due=0, oldest_age=0.0, later=0, running=0) for which in known}
    return tuple((idle | found).values())


def _minutes(database: Database, minutes: int) -> tuple[Minute, ...]:
    counted: dict[datetime, dict[str, int]] = {}
    for row in database.run("attempts_by_minute", repeat_if_lost=True, minutes=minutes):
        counted.setdefault(row.minute, {})[row.outcome] = row.attempts
    return tuple(Minute(start, outcomes) for start, outcomes in counted.items())
