"""The frame of every step function: decode, claim, run the handler, settle, publish what became due.

Only a failure of the infrastructure is answered with an error, so that Pub/Sub delivers again; whatever the
database has decided (done, busy, stale, early, unknown) is acknowledged.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from shared import dead_letters, envelope, logs, retry, steps
from shared.errors import (
    ConfigError,
    EchoproofError,
    InvalidJsonError,
    LeaseLostError,
    MalformedMessageError,
    PermanentError,
    RetryLater,
    Unresolved,
)
from shared.heartbeat import Heartbeat
from shared.outbox import Outbox
from shared.pipeline import Pipeline, Step
from shared.publisher import Dispatch
from shared.step_context import StepContext
from shared.wiring import HttpFunction, Surroundings, internal_function

Handler = Callable[[Any], dict[str, Any] | None]

LONGEST_WAIT = timedelta(days=1)  # what a provider's Retry-After may ask for at most

PIPELINE = "pipeline.yaml"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """How one delivery ended: `outcome` is succeeded, a step state, a refusal, or lost or malformed."""

    outcome: str
    result: Any = None


@dataclass(frozen=True)
class StepFunction:
    """One function of the pipeline: its handler and what it needs to settle the steps that it runs."""

    name: str
    handler: Handler
    outbox: Outbox
    pipeline: Pipeline

    def deliver(self, body: bytes, headers: dict[str, str]) -> Delivery:
        """Process one delivery; raises UnavailableError when the database cannot be reached."""
        try:
            message = envelope.decode(body, headers)
            policy = self._policy(message)
        except MalformedMessageError as error:
            dead_letters.record_malformed(self.outbox.database, error)
            return Delivery("malformed")
        with logs.bind(operation_id=str(message.operation_id), step=message.step, dispatch=message.dispatch):
            dispatch = Dispatch(message.operation_id, message.type, message.step, message.dispatch, message.traceparent)
            held = steps.claim(self.outbox.database, policy, dispatch)
            if isinstance(held, steps.NotClaimed):
                return self._not_claimed(held, message)
            return self._attempt(held)

    def _policy(self, message: envelope.Message) -> Step:
        for step in self.pipeline.steps_of(self.name):
            if (step.type, step.name) == (message.type, message.step):
                return step
        raise envelope.misdirected(message, f"{self.name} does not run this step")

    def _not_claimed(self, refused: steps.NotClaimed, message: envelope.Message) -> Delivery:
        log.info("not started: %s", refused.refusal)
        if refused.refusal is steps.Refusal.UNKNOWN:
            dead_letters.record_unknown(self.outbox.database, message)
        return Delivery(refused.refusal, refused.result)

    def _attempt(self, held: steps.Claim) -> Delivery:
        context = StepContext(held, self.outbox.database)
        with logs.bind(attempt=held.attempt, fence=held.fence), Heartbeat(self.outbox.database, held, context):
            try:
                delivery, due = self._run(held, context)
            except LeaseLostError:
                log.warning("the lease was lost; nothing of this attempt was written")
                return Delivery("lost")
        self.outbox.publish_at_once(due)
        return delivery

    def _run(self, held: steps.Claim, context: StepContext) -> tuple[Delivery, list[Dispatch]]:
        try:
            result = self.handler(context)
            context.check_effects()
            state, due = steps.succeed(context.settling or self.outbox.database, held, result, self.outbox.writer_lease)
            context.check_settled(state)
            context.close(None)
        except LeaseLostError as error:
            context.close(error)
            raise
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome, bounded by the budget
            context.close(error)
            return self._settle_failure(held, error)
        log.info("settled: %s", state)
        return Delivery(state, result if state == "succeeded" else None), due

    def _settle_failure(self, held: steps.Claim, error: Exception) -> tuple[Delivery, list[Dispatch]]:
        outcome, delay = judge(held, error)
        kind = type(error).__name__
        # Another library's message may hold input or credentials: only our own are kept.
        text = str(error) if isinstance(error, EchoproofError) else "see the logs of this attempt"
        log.warning("attempt failed: %s (%s)", outcome, kind, exc_info=error)
        state, due = steps.fail(self.outbox.database, held, outcome, kind, text, delay, self.outbox.writer_lease)
        return Delivery(state), due


def judge(held: steps.Claim, error: Exception) -> tuple[steps.Outcome, timedelta]:
    """Return what a handler's exception means for its step, and the delay before a next attempt."""
    if isinstance(error, Unresolved):
        return steps.Outcome.UNRESOLVED, timedelta(0)
    if isinstance(error, PermanentError | InvalidJsonError):
        return steps.Outcome.FAILED, timedelta(0)
    if isinstance(error, RetryLater) and error.after is not None:
        return steps.Outcome.WAIT, min(error.after, LONGEST_WAIT)
    return steps.Outcome.RETRY, retry.backoff(held.policy.backoff, held.failures, random.SystemRandom())


def step_function(name: str, handler: Handler) -> HttpFunction:
    """Make the HTTP function that runs a handler for its step.

    A step's `main.py` is `main = step_function("invoice_record", record_invoice)`.

    Raises ConfigError with every problem of the environment.
    """

    def check(pipeline: Pipeline) -> None:
        if not pipeline.steps_of(name):
            raise ConfigError([f"no step in {PIPELINE} has the function {name}: name it there, or mend its main.py"])

    def answer(around: Surroundings, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        delivery = StepFunction(name, handler, around.outbox, around.pipeline).deliver(body, headers)
        return {"outcome": delivery.outcome, "result": delivery.result}

    return internal_function(answer, check)
