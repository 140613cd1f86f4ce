"""The frame of every step function: decode, claim, run the handler, settle, publish what became due.

Only a failure of the infrastructure is answered with an error, so that Pub/Sub delivers again; whatever the
database has decided (done, busy, stale, early, unknown) is acknowledged.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from typing import Any

from werkzeug.wrappers import Request, Response

from shared import admission, dead_letters, envelope, logs, pacing, steps
from shared.attempt import Attempt, Handler
from shared.config import ShutdownSettings
from shared.errors import ConfigError, LeaseLostError, MalformedMessageError
from shared.heartbeat import Heartbeat
from shared.outbox import Outbox
from shared.pipeline import Pipeline, Step
from shared.problems import problem
from shared.publisher import Dispatch
from shared.settings import load
from shared.shutdown import Shutdown
from shared.step_context import StepContext
from shared.wiring import HttpFunction, Surroundings, internal_function

__all__ = ["Delivery", "Handler", "StepFunction", "step_function"]

PIPELINE = "pipeline.yaml"
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Delivery:
    """How one delivery ended: `outcome` is succeeded, a step state, a refusal, or handed_back, lost or malformed."""

    outcome: str
    result: Any = None


@dataclass(frozen=True)
class StepFunction:
    """One function of the pipeline: its handler and what it needs to settle the steps that it runs."""

    name: str
    handler: Handler
    outbox: Outbox
    pipeline: Pipeline
    shutdown: Shutdown = field(default_factory=Shutdown)

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

    def _in_turn(self, context: StepContext) -> dict[str, Any] | None:
        pacing.wait_for_turn(self.outbox.database, context.policy)
        return self.handler(context)

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
        context = StepContext(held, self.outbox.database, self.shutdown)
        attempt = Attempt(held, context, self._in_turn, self.outbox)
        with logs.bind(attempt=held.attempt, fence=held.fence), self.shutdown.running(attempt):
            if self.shutdown.stopping:  # it was claimed at the last moment
                attempt.hand_back()
                return Delivery(steps.Outcome.HANDED_BACK)
            try:
                with Heartbeat(self.outbox.database, held, context):
                    settled = attempt.run()
            except LeaseLostError:
                log.warning("the lease was lost; nothing of this attempt was written")
                return Delivery("lost")
            log.info("settled: %s", settled.state)
            self.outbox.publish_at_once(settled.due)
            if not settled.due:  # perhaps the end of the operation, which makes room for another of its tenant
                admission.admit(self.outbox, self.pipeline, held.tenant)
        return Delivery(settled.state, settled.result)


def step_function(name: str, handler: Handler) -> HttpFunction:
    """Make the HTTP function that runs a handler for its step.

    A step's `main.py` is `main = step_function("invoice_record", record_invoice)`.

    Raises ConfigError with every problem of the environment.
    """

    def check(pipeline: Pipeline) -> None:
        if not pipeline.steps_of(name):
            raise ConfigError([f"no step in {PIPELINE} has the function {name}: name it there, or mend its main.py"])

    (settings,) = load(ShutdownSettings)
    shutdown = Shutdown(settings.shutdown_grace)

    def answer(around: Surroundings, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
        delivery = StepFunction(name, handler, around.outbox, around.pipeline, shutdown).deliver(body, headers)
        return {"outcome": delivery.outcome, "result": delivery.result}

    function = internal_function(answer, check)

    def main(request: Request) -> Response:
        return _stopping() if shutdown.stopping else function(request)

    shutdown.watch()
    return main


def _stopping() -> Response:
    """Answer a delivery that another instance must take: 503, so that it comes again."""
    told = problem("unavailable", "this instance is being shut down")
    return Response(json.dumps(told.body), status=told.status, headers=told.headers)
