"""When the next attempt is due: backoff, Retry-After, durations."""

from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.database_errors import PASSING, DatabaseAwayError
from shared.durations import duration
from shared.pipeline import Backoff
from shared.retry import LONGEST_WAIT, SHORTEST_WAIT, answered_at, backoff, parse_retry_after, patiently

POLICY = Backoff(timedelta(seconds=10), timedelta(minutes=10))
NOW = datetime(2026, 1, 31, 8, 0, 0, tzinfo=UTC)


class Fixed(Random):
    """A source that always gives the same fraction."""

    def __init__(self, fraction: float) -> None:
        super().__init__()
        self.fraction = fraction

    def random(self) -> float:
        return self.fraction


@pytest.mark.parametrize(
    ("failures", "most"), [(-1, 20), (0, 20), (1, 20), (2, 40), (3, 80), (4, 160), (6, 600), (7, 600), (10**9, 600)]
)
def test_the_wait_doubles_up_to_its_bound(failures: int, most: int) -> None:
    assert backoff(POLICY, failures, Fixed(0.0)) == timedelta(seconds=10)
    assert backoff(POLICY, failures, Fixed(1.0)) == timedelta(seconds=most)
    assert backoff(POLICY, failures, Fixed(0.5)) == timedelta(seconds=(10 + most) / 2)


@given(
    st.timedeltas(timedelta(milliseconds=1), timedelta(days=1)),
    st.timedeltas(timedelta(0), timedelta(days=1)),
    st.integers(-5, 10_000),
    st.randoms(use_true_random=False),
)
def test_the_wait_is_always_within_the_policy(
    shortest: timedelta, more: timedelta, failures: int, random: Random
) -> None:
    policy = Backoff(shortest, shortest + more)
    assert policy.min <= backoff(policy, failures, random) <= policy.max


def test_waits_are_spread() -> None:
    random = Random(7)
    waits = {backoff(POLICY, 3, random) for _ in range(100)}
    assert len(waits) > 90
    assert max(waits) - min(waits) > timedelta(seconds=50)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120),
        (" 120 ", 120),
        ("0", 1),
        ("3600", 3600),
        ("3601", 3600),
        ("9" * 400, 3600),
        ("Sat, 31 Jan 2026 08:00:30 GMT", 30),
        ("Saturday, 31-Jan-26 08:00:30 GMT", 30),
        ("Sat Jan 31 08:00:30 2026", 30),
        ("Sat, 31 Jan 2026 09:00:30 +0100", 30),
        ("Sat, 31 Jan 2026 07:00:00 GMT", 1),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
    ],
)
def test_retry_after_is_seconds_or_a_date_and_clamped(value: str, seconds: int) -> None:
    assert parse_retry_after(value, NOW) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "value",
    [None, "", " ", "soon", "-1", "+5", "1.5", "1e3", "٣", "31 Feb", "Sat, 99 Jan 2026 08:00:30 GMT", "0x10", "\0"],
)
def test_retry_after_that_is_neither_is_none(value: str | None) -> None:
    assert parse_retry_after(value, NOW) is None


@given(st.text(max_size=40) | st.from_regex(r"\w{3}, [0-9]{1,2} \w{3} [0-9]{1,12} [0-9]{2}:[0-9]{2}:[0-9]{2} .*"))
def test_case_59_any_retry_after_is_within_bounds_or_none(value: str) -> None:
    wait = parse_retry_after(value, NOW)
    assert wait is None or SHORTEST_WAIT <= wait <= LONGEST_WAIT


@pytest.mark.parametrize(
    ("text", "span"),
    [
        ("40s", timedelta(seconds=40)),
        ("10m", timedelta(minutes=10)),
        ("1h30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("1h2m3s4ms", timedelta(hours=1, minutes=2, seconds=3, milliseconds=4)),
        ("90s", timedelta(seconds=90)),
        ("999999h", timedelta(hours=999_999)),
    ],
)
def test_a_duration(text: str, span: timedelta) -> None:
    assert duration(text) == span


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0s",
        "0h0m",
        "40",
        40,
        None,
        "40 s",
        "s",
        "-1s",
        "1.5s",
        "30m1h",
        "1s1s",
        "1w",
        "40S",
        "4٠s",
        "1s\n",
        "9" * 7 + "s",
    ],
)
def test_what_is_no_duration(text: object) -> None:
    with pytest.raises(ValueError):
        duration(text)


def test_a_date_to_wait_for_is_read_by_the_clock_of_the_answer() -> None:
    answered = answered_at("Sat, 31 Jan 2026 08:00:00 GMT")
    assert parse_retry_after("Sat, 31 Jan 2026 08:00:30 GMT", answered) == timedelta(seconds=30)


@pytest.mark.parametrize("date", [None, "", "soon", "Sat, 99 Jan 2026 08:00:00 GMT"])
def test_an_answer_without_a_date_was_made_now(date: str | None) -> None:
    assert abs(answered_at(date) - datetime.now(UTC)) < timedelta(minutes=1)


@pytest.mark.parametrize("error", PASSING)
def test_what_passes_by_itself_is_repeated_until_it_has(error: type[Exception]) -> None:
    left = [error(), error(), error()]

    def call() -> str:
        if left:
            raise left.pop()
        return "done"

    assert patiently(call, 60) == "done"


def test_patience_ends_and_other_errors_are_not_repeated() -> None:
    calls = []

    def call(error: Exception) -> None:
        calls.append(1)
        raise error

    with pytest.raises(DatabaseAwayError):
        patiently(lambda: call(DatabaseAwayError()), 0.01)
    with pytest.raises(KeyError):
        patiently(lambda: call(KeyError()), 60)
    assert len(calls) == 2
