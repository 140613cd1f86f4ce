"""Errors: default messages, families, and the rule for text that is stored (case 9)."""

import inspect
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import errors
from shared.errors import (
    ConfigError,
    ConflictError,
    EchoproofError,
    InvalidJsonError,
    LeaseLost,
    LeaseLostError,
    PermanentError,
    RetryableError,
    RetryLater,
    UnavailableError,
    Unresolved,
    sanitise,
)

CLASSES = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, EchoproofError)]


def test_the_first_line_of_a_docstring_is_the_default_message() -> None:
    assert str(UnavailableError()) == "The infrastructure is away for the moment"
    assert str(UnavailableError("the queue is away")) == "the queue is away"


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_says_something_by_default(kind: type[EchoproofError]) -> None:
    assert len(kind.default_message()) > 10
    assert kind.__name__.endswith("Error") or kind in (RetryLater, Unresolved)


def test_families() -> None:
    assert issubclass(RetryLater, RetryableError)
    assert issubclass(UnavailableError, RetryableError)
    assert issubclass(LeaseLostError, ConflictError)
    assert LeaseLost is LeaseLostError
    assert issubclass(InvalidJsonError, PermanentError)
    # What an unresolved effect needs is neither a retry nor an end.
    assert not issubclass(Unresolved, (RetryableError, PermanentError, ConflictError))


def test_a_config_error_lists_every_problem() -> None:
    assert str(ConfigError(["A: one", "B: two"])).splitlines()[1:] == ["  A: one", "  B: two"]


@pytest.mark.parametrize(
    ("after", "expected"),
    [(None, None), (0, timedelta(0)), (1.5, timedelta(seconds=1.5)), (timedelta(hours=1), timedelta(hours=1))],
)
def test_a_wait_is_a_timedelta_or_seconds(after: timedelta | float | None, expected: timedelta | None) -> None:
    assert RetryLater(after).after == expected


@pytest.mark.parametrize("after", [-1, timedelta(seconds=-1), float("nan"), float("inf"), 1e300])
def test_a_wait_that_cannot_be_is_refused(after: timedelta | float) -> None:
    with pytest.raises(ValueError):
        RetryLater(after)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("plain", "plain"),
        ("a\x00b", "ab"),
        ("\ud800x\udfff", "x"),
        ("a\r\nb\tc", "a\nb\tc"),
        ("\x1b[31mred\x7f\x9b", "[31mred"),
        (r"a literal \u0000 survives", r"a literal \u0000 survives"),
        ("é€😀", "é€😀"),
        ("", ""),
    ],
)
def test_case_9_error_text_is_made_storable(text: str, clean: str) -> None:
    assert sanitise(text) == clean


def test_case_9_long_error_text_is_cut() -> None:
    assert sanitise("x" * 3000) == "x" * 1999 + "…"
    assert sanitise("x" * 2000) == "x" * 2000
    assert sanitise("\0" * 5000 + "x") == "x"
    assert [sanitise("xyz", limit) for limit in (0, 1, 2, 3)] == ["", "…", "x…", "xyz"]


@given(st.text(st.characters(), max_size=300), st.integers(0, 100))
def test_case_9_sanitised_text_is_always_storable(text: str, limit: int) -> None:
    clean = sanitise(text, limit)
    assert len(clean) <= limit
    assert "\0" not in clean
    assert clean.encode("utf-8").decode("utf-8") == clean
    assert sanitise(clean, limit) == clean
