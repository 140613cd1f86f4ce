"""Turns of a paced function: a fixed time apart, whoever takes them and however many do at once."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from shared import pacing
from shared.errors import RetryLater
from shared.pipeline import Pacing, Step
from tests.database.kit import Kit


def paced(kit: Kit, per_second: float | None, concurrent: int | None = None) -> Step:
    return replace(kit.pipeline.step("test.single", "only"), pacing=Pacing(per_second, concurrent))


def test_twenty_attempts_at_once_start_a_turn_apart(kit: Kit) -> None:
    step = paced(kit, 20)

    def start(_: int) -> float:
        pacing.wait_for_turn(kit.database, step)
        return time.monotonic()

    with ThreadPoolExecutor(20) as threads:
        starts = sorted(threads.map(start, range(20)))
    assert starts[-1] - starts[0] >= 19 / 20
    assert kit.value("SELECT count(*) FROM paces") == 1


def test_an_unpaced_step_takes_no_turn(kit: Kit) -> None:
    pacing.wait_for_turn(kit.database, kit.pipeline.step("test.single", "only"))
    pacing.wait_for_turn(kit.database, paced(kit, None, 2))
    assert kit.value("SELECT count(*) FROM paces") == 0


def test_a_turn_too_far_away_is_not_taken_and_the_attempt_comes_back(kit: Kit) -> None:
    step = paced(kit, 5)
    kit.query("INSERT INTO paces VALUES ('test_only', now() + interval '1 hour')")
    with pytest.raises(RetryLater) as told:
        pacing.wait_for_turn(kit.database, step)
    assert told.value.after is not None
    assert kit.value("SELECT next_at > now() + interval '59 minutes' FROM paces")


def test_turns_that_nobody_took_are_gone(kit: Kit) -> None:
    kit.query("INSERT INTO paces VALUES ('test_only', now() - interval '1 hour')")
    for _ in range(3):
        pacing.wait_for_turn(kit.database, paced(kit, 10))
    assert kit.value("SELECT next_at > now() FROM paces")


@pytest.mark.parametrize(("pace", "expected"), [(Pacing(5, 2), 2), (Pacing(5, None), 23), (Pacing(None, 7), 7)])
def test_a_queue_lets_through_what_finds_a_turn_in_time(pace: Pacing, expected: int) -> None:
    assert pacing.at_once(pace) == expected
