"""Interleaved rounds: every contender once a round, so that what else the machine does hits all of them alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

MAX_COUNT = 20_000  # pieces of work in one sample; bounds a run whatever the machine
Role = Literal["usual", "floor", "ours", "other"]


@dataclass(frozen=True)
class Contender:
    """One way of doing the work: `run(count)` does so many pieces and returns the seconds that they took.

    `count` fixes the pieces of a sample; without it a sample has as many as take about `--seconds`.
    """

    name: str
    role: Role
    run: Callable[[int], float]
    count: int | None = None


@dataclass(frozen=True)
class Aim:
    """What the row `ours` should reach, as a multiple of the row with this role."""

    of: Role
    at_least: float


@dataclass(frozen=True)
class Comparison:
    """Ways of doing the same work, one of them ours."""

    name: str
    title: str
    contenders: Sequence[Contender]
    aim: Aim | None = None
    calibration: int = 200


@dataclass
class Outcome:
    """The rates (pieces a second) of each contender, one a round."""

    comparison: Comparison
    rates: dict[str, list[float]] = field(default_factory=dict)

    def ratio(self, contender: Contender, role: Role) -> float | None:
        """Median over the rounds of this contender's rate over that of the contender with this role."""
        base = next((c for c in self.comparison.contenders if c.role == role), None)
        if base is None:
            return None
        pairs = zip(self.rates[contender.name], self.rates[base.name], strict=True)
        return median(rate / other for rate, other in pairs)


def measure(
    comparison: Comparison, rounds: int, seconds: float, progress: Callable[[str, str, float], None]
) -> Outcome:
    """Calibrate each contender once, which also warms it up, then run the rounds, starting elsewhere each time."""
    counts = {c.name: c.count or _count(c, comparison.calibration, seconds) for c in comparison.contenders}
    outcome = Outcome(comparison, {c.name: [] for c in comparison.contenders})
    for number in range(rounds):
        turn = number % len(comparison.contenders)
        for contender in [*comparison.contenders[turn:], *comparison.contenders[:turn]]:
            rate = counts[contender.name] / contender.run(counts[contender.name])
            outcome.rates[contender.name].append(rate)
            progress(f"round {number + 1}/{rounds}", contender.name, rate)
    return outcome


def _count(contender: Contender, calibration: int, seconds: float) -> int:
    rate = calibration / contender.run(calibration)
    # A multiple of four, so that four clients share it evenly.
    return max(calibration, min(MAX_COUNT, int(rate * seconds))) // 4 * 4
