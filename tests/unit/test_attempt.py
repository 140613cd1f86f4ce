"""What a handler's exception means for its step: which outcome, charged or not, and how long the wait is."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from shared.attempt import judge
from shared.database_errors import SerializationError
from shared.effects import EffectRejectedError
from shared.errors import InvalidJsonError, InvalidRequestError, PermanentError, RetryLater, Unresolved
from shared.pipeline import Backoff, Step
from shared.retry import LONGEST_WAIT, SHORTEST_WAIT
from shared.steps import Claim, Outcome

BACKOFF = Backoff(timedelta(seconds=10), timedelta(seconds=20))
STEP = Step(
    name="only", type="test.single", function="test_only", needs=(), transport="pubsub", attempts=3, backoff=BACKOFF,
    lease=timedelta(seconds=60), timeout=timedelta(seconds=40), max_waits=5,
)  # fmt: skip
NOW = datetime(2026, 1, 31, 8, 0, 0, tzinfo=UTC)
CLAIM = Claim(
    operation_id=UUID(int=1), policy=STEP, traceparent=None, attempt=1, fence=1, failures=1, waits=0, generation=1,
    tenant="shop", key="k", input={}, accepted_at=NOW, deadline=None, ending=False, results={},
)  # fmt: skip


class CardExpiredError(ValueError):
    """An error of a handler's own."""


def permanent(*names: str) -> Claim:
    return replace(CLAIM, policy=replace(STEP, permanent=names))


@pytest.mark.parametrize(
    "error", [PermanentError(), InvalidJsonError(), InvalidRequestError("x", "y"), EffectRejectedError()]
)
def test_invalid_input_and_what_no_retry_can_help_is_never_retried(error: Exception) -> None:
    assert judge(CLAIM, error) == (Outcome.FAILED, timedelta(0))


@pytest.mark.parametrize("error", [ValueError(), KeyError(), OSError(), RetryLater(), SerializationError()])
def test_anything_else_is_charged_and_tried_again_with_backoff(error: Exception) -> None:
    outcome, delay = judge(CLAIM, error)
    assert outcome is Outcome.RETRY
    assert BACKOFF.min <= delay <= BACKOFF.max


@pytest.mark.parametrize("name", ["CardExpiredError", "ValueError", "Exception"])
def test_an_error_that_the_step_names_or_a_base_of_it_fails_at_once(name: str) -> None:
    assert judge(permanent("KeyError", name), CardExpiredError()) == (Outcome.FAILED, timedelta(0))


def test_the_name_of_a_subclass_or_another_class_does_not_fail_it() -> None:
    assert judge(permanent("CardExpiredError", "KeyError"), ValueError())[0] is Outcome.RETRY


def test_what_a_handler_says_itself_goes_before_the_names() -> None:
    every = permanent("Exception")
    assert judge(every, Unresolved())[0] is Outcome.UNRESOLVED
    assert judge(every, RetryLater(3)) == (Outcome.WAIT, timedelta(seconds=3))


@pytest.mark.parametrize(
    ("after", "wait"),
    [
        (0, SHORTEST_WAIT),
        (0.2, SHORTEST_WAIT),
        (5, timedelta(seconds=5)),
        (3600, timedelta(hours=1)),
        (3601, LONGEST_WAIT),
        (timedelta(days=365), LONGEST_WAIT),
    ],
)
def test_case_59_a_wait_that_was_asked_for_is_clamped_and_not_charged(after: float, wait: timedelta) -> None:
    assert judge(CLAIM, RetryLater(after)) == (Outcome.WAIT, wait)
