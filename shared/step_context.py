"""What a handler sees of its attempt: the operation, the results before it, and the transaction that completes it."""

from __future__ import annotations

import contextlib
from datetime import datetime
from typing import Any
from uuid import UUID

from shared import steps
from shared.database import Database, Transaction
from shared.effects import Effect, EffectRejectedError
from shared.errors import EchoproofError, LeaseLostError, Unresolved
from shared.pipeline import Step
from shared.providers import Provider
from shared.shutdown import Shutdown


class SettlingTransactionError(EchoproofError):
    """The step's settling transaction is already open."""


class OpenEffectError(Unresolved):
    """The handler ended although the outcome of an effect that it asked for is not known."""


class StepContext:
    """One attempt of a step, handed to its handler.

    `transaction()` opens the transaction in which the step will be settled: business rows written there commit
    with the step's completion or not at all. `cancelled` and `lost` are what the last heartbeat found: somebody asked
    for a cancel; another attempt may have the step by now, so that nothing of this one will be written.
    """

    def __init__(self, claim: steps.Claim, database: Database, shutdown: Shutdown | None = None) -> None:
        self._claim = claim
        self._shutdown = shutdown
        self._runs = 1
        self.database = database
        self.cancelled = False
        self.lost = False
        self._open = contextlib.ExitStack()
        self._unsettled: set[str] = set()
        self.settling: Transaction | None = None

    @property
    def operation_id(self) -> UUID:
        """UUIDv7 of the operation."""
        return self._claim.operation_id

    @property
    def tenant(self) -> str:
        """The tenant that asked for the operation."""
        return self._claim.tenant

    @property
    def type(self) -> str:
        """Operation type."""
        return self._claim.policy.type

    @property
    def key(self) -> str:
        """The caller's idempotency key."""
        return self._claim.key

    @property
    def policy(self) -> Step:
        """What pipeline.yaml says of this step."""
        return self._claim.policy

    @property
    def step(self) -> str:
        """Name of this step."""
        return self._claim.policy.name

    @property
    def attempt(self) -> int:
        """Number of this run; the first is 1 and no number is used twice."""
        return self._claim.attempt

    @property
    def first_run(self) -> bool:
        """Whether nothing of this step can have run before: the first attempt, and its handler's first run."""
        return self._claim.attempt == 1 and self._runs == 1

    @property
    def stopping(self) -> bool:
        """Whether the instance is being shut down: end within the grace, or the step is handed to another instance."""
        return self._shutdown is not None and self._shutdown.stopping

    @property
    def input(self) -> dict[str, Any]:
        """The operation's input."""
        return self._claim.input

    @property
    def results(self) -> dict[str, Any]:
        """Results of the steps that this one needs, by step name."""
        return dict(self._claim.results)

    @property
    def accepted_at(self) -> datetime:
        """When the operation was accepted, by the database's clock."""
        return self._claim.accepted_at

    def transaction(self) -> Transaction:
        """Open the settling transaction; it commits when the handler returns and rolls back when it raises.

        Holds the step's row lock, so call out to nothing from here on. Raises LeaseLostError when this attempt no
        longer holds the step, SettlingTransactionError at a second call.
        """
        if self.settling is not None:
            raise SettlingTransactionError
        transaction = self._open.enter_context(self.database.transaction())
        self.settling = transaction
        steps.hold(transaction, self._claim)
        return transaction

    def effect(self, name: str, provider: Provider, request: Any) -> dict[str, Any]:
        """Make an outside effect happen once and return the provider's answer (see `shared.effects.Effect`).

        `name` is unique within the step and never changes. Not to be called once `transaction()` is open, whose row
        lock it would wait for: raises SettlingTransactionError.
        """
        if self.settling is not None:
            raise SettlingTransactionError("effects come before the settling transaction")
        self._unsettled.add(name)
        try:
            answer = Effect(self.database, self._claim, name, provider).happen(request)
        except EffectRejectedError:
            self._unsettled.discard(name)  # a definite no; the handler may go on without the effect
            raise
        self._unsettled.discard(name)
        return answer

    def check_effects(self) -> None:
        """Raise OpenEffectError when an effect was asked for that did not come to a definite end."""
        if self._unsettled:
            raise OpenEffectError

    def check_settled(self, state: str) -> None:
        """Raise OpenEffectError when business rows would be committed although the step has not succeeded."""
        if state != "succeeded" and self.settling is not None:
            raise OpenEffectError

    def check(self) -> None:
        """Raise LeaseLostError when this attempt no longer holds the step, as the heartbeat or a shutdown found."""
        if self.lost:
            raise LeaseLostError

    def close(self, error: BaseException | None) -> None:
        """End the settling transaction: commit it, or roll it back for an error."""
        try:
            if error is None:
                self._open.close()
            else:
                with contextlib.suppress(type(error)):
                    self._open.__exit__(type(error), error, error.__traceback__)
        finally:
            self.settling = None

    def run_again(self) -> None:
        """Note that the handler starts once more within this attempt; raises LeaseLostError when the step is lost."""
        self.check()
        self._runs += 1
