"""One attempt of a claimed step: its handler and its settle, each repeated where that is safe.

What can be repeated: a transaction that lost a serialization conflict or a deadlock, and one whose connection died
before its commit, wrote nothing, so the whole handler runs again under the same fence (its effects are in the ledger
and do not happen again). A settle whose answer was lost is in doubt: the next one waits for its row lock, lands if the
first did not, and else reads back what was written under the fence (docs/decisions/0010).
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from shared import retry, steps
from shared.database_errors import PASSING, SerializationError
from shared.errors import EchoproofError, InvalidInputError, LeaseLostError, PermanentError, RetryLater, Unresolved
from shared.outbox import Outbox
from shared.publisher import Dispatch
from shared.step_context import StepContext
from shared.steps import Claim, Outcome

Handler = Callable[[Any], dict[str, Any] | None]

Written = tuple[str, list[Dispatch]]  # a step's new state, and what became due

HANDED_BACK = "the instance was shut down before the handler ended"
RUNS = 5  # of a handler within one attempt; beyond, its transaction is one that cannot win, and the budget pays

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Settled:
    """What was written: the step's new state, what its writer publishes, and the result if it succeeded."""

    state: str
    due: list[Dispatch]
    result: dict[str, Any] | None = None


class Attempt:
    """Runs a handler under a claim and settles the step; may be handed back by another thread meanwhile."""

    def __init__(self, held: Claim, context: StepContext, handler: Handler, outbox: Outbox) -> None:
        self.context = context
        self._held = held
        self._database = outbox.database
        self._handler = handler
        self._outbox = outbox
        self._patience = held.policy.lease.total_seconds()  # after a lease without the database the step is not ours

    def run(self) -> Settled:
        """Run the handler and settle; return what was written.

        Raises LeaseLostError when the fence no longer holds the step, UnavailableError when the database stayed away
        for a lease: then nothing is known but that reconcile will find the step.
        """
        for remaining in reversed(range(RUNS)):
            try:
                return self._once()
            except LeaseLostError:
                return self._read_back()
            except (*PASSING, SerializationError) as error:
                if not remaining:
                    return self._fail(error)
                log.warning("the handler runs again in this attempt: %s", error)
                if settled := self._settled_already(error):
                    return settled
                self.context.run_again()
            except Exception as error:  # noqa: BLE001 - whatever a handler raises is an outcome, bounded by the budget
                return self._fail(error)
        raise AssertionError("unreachable: the last run returns or raises")

    @property
    def settling(self) -> bool:
        """Whether the settling transaction is open, which holds the step's row."""
        return self.context.settling is not None

    def hand_back(self) -> None:
        """Queue the step again for another instance, uncharged; does nothing when it is settled or lost already.

        Raises UnavailableError when the database is away, StatementTimeoutError when a settle holds the step's row.
        """
        self.context.lost = True
        try:
            _, due = self._write_failure(Outcome.HANDED_BACK, "shutdown", HANDED_BACK, timedelta(0))
        except LeaseLostError:
            return
        log.warning("handed back at shutdown")
        self._outbox.publish_at_once(due)

    def _once(self) -> Settled:
        context, write = self.context, partial(steps.succeed, held=self._held, writer_lease=self._outbox.writer_lease)
        try:
            result = self._handler(context)
            context.check_effects()
            if context.settling is None:
                return self._patiently(partial(write, self._database, result=result), result)
            state, due = write(context.settling, result=result)
            context.check_settled(state)
            context.close(None)
        except BaseException as error:
            context.close(error)
            raise
        return _settled(state, due, result)

    def _fail(self, error: Exception) -> Settled:
        outcome, delay = judge(self._held, error)
        kind = "incompatible" if outcome is Outcome.INCOMPATIBLE else type(error).__name__
        # Another library's message may hold input or credentials: only our own are kept.
        text = str(error) if isinstance(error, EchoproofError) else "see the logs of this attempt"
        log.warning("attempt failed: %s (%s)", outcome, kind, exc_info=error)
        return self._patiently(partial(self._write_failure, outcome, kind, text, delay))

    def _write_failure(self, outcome: Outcome, kind: str, text: str, delay: timedelta) -> Written:
        return steps.fail(self._database, self._held, outcome, kind, text, delay, self._outbox.writer_lease)

    def _patiently(self, write: Callable[[], Written], result: dict[str, Any] | None = None) -> Settled:
        """Settle, again while the database is away; zero rows may mean that the settle before this one has landed."""

        def once() -> Settled:
            try:
                return _settled(*write(), result)
            except LeaseLostError:
                return self._written(result)

        return retry.patiently(once, self._patience)

    def _settled_already(self, error: Exception) -> Settled | None:
        """Return what a commit in doubt has written; None when nothing was and the fence still holds the step."""
        if isinstance(error, SerializationError):
            return None  # the server has said that it rolled back
        try:
            # Waits for the row lock of the transaction in doubt: after this it has either landed or never will.
            retry.patiently(lambda: steps.hold(self._database, self._held), self._patience)
        except LeaseLostError:
            return self._read_back()
        return None

    def _read_back(self) -> Settled:
        return retry.patiently(self._written, self._patience)

    def _written(self, result: dict[str, Any] | None = None) -> Settled:
        written = steps.read_back(self._database, self._held)
        if written is None:
            raise LeaseLostError
        log.warning("its answer was lost, the settle is read back: %s", written[0])
        return _settled(*written, result)


def _settled(state: str, due: list[Dispatch], result: dict[str, Any] | None) -> Settled:
    return Settled(state, due, result if state == "succeeded" else None)


def judge(held: Claim, error: Exception) -> tuple[Outcome, timedelta]:
    """Return what a handler's exception means for its step, and the delay before a next attempt.

    A wait that a provider asked for is clamped (`retry.clamp`) and not charged. The step's `permanent` names are
    compared with the exception's class and its bases; the outcomes that a handler chose itself go before them.
    """
    if isinstance(error, Unresolved):
        return Outcome.UNRESOLVED, timedelta(0)
    if isinstance(error, RetryLater) and error.after is not None:
        return Outcome.WAIT, retry.clamp(error.after)
    if isinstance(error, InvalidInputError) and (held.attempt > 1 or held.results):
        return Outcome.INCOMPATIBLE, timedelta(0)  # it was taken before: what has changed is the code
    if isinstance(error, PermanentError) or _named(error) & set(held.policy.permanent):
        return Outcome.FAILED, timedelta(0)
    return Outcome.RETRY, retry.backoff(held.policy.backoff, held.failures, random.SystemRandom())


def _named(error: Exception) -> set[str]:
    return {kind.__name__ for kind in type(error).__mro__}
