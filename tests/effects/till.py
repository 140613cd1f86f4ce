"""The real payments provider at the real payment server, one step function before them, and what went over the wire."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from local.faults import Fault
from local.payments import PaymentServer
from shared.database import Connection, Database, Row, connector
from shared.duties import lookups
from shared.providers.payments import Payments, PaymentSettings
from shared.step_context import StepContext
from shared.step_function import Handler
from tests.database.kit import drained
from tests.effects.attempt import Attempt, Death, Place
from tests.effects.kit import HOUR, EffectsKit, one_effect

PAY = {"amount": 1530, "currency": "gbp", "payment_method": "pm_card_visa"}
TIMEOUT = timedelta(seconds=1)
LONG = 1.5  # seconds; longer than the timeout
DAY = timedelta(hours=23)


class Bank(PaymentServer):
    """A started payment server."""

    def __init__(self) -> None:
        super().__init__()
        self.url = f"http://127.0.0.1:{self.start()}"


class Till(EffectsKit):
    """Steps that pay."""

    def __init__(self, database: Database, url: str, folder: Path, bank: Bank | None = None) -> None:
        super().__init__(database, url, folder)
        self.bank = bank or Bank()
        self.provider = self.payments()
        self.pay = one_effect(self.provider, PAY)

    def payments(self, *, horizon: timedelta = DAY, visibility: timedelta = timedelta(seconds=30)) -> Payments:
        return Payments(
            PaymentSettings(
                payments_key=SecretStr("sk_test_local"), payments_url=self.bank.url, payments_timeout=TIMEOUT,
                payments_horizon=horizon, payments_visibility=visibility,
            )
        )  # fmt: skip

    def close(self) -> None:
        self.bank.stop()
        super().close()

    def disconnect(self) -> None:
        """Close the connection of the test's own statements."""
        super().close()

    def connect(self) -> None:
        """Open it again."""
        self._raw = Connection(connector(self.url)())

    def pass_time(self, seconds: int = HOUR) -> None:
        """Let time pass here and at the provider, which prunes its keys."""
        super().pass_time(seconds)
        self.bank.advance(seconds)

    def next(self, *kinds: str, seconds: float = LONG) -> None:
        """Say what goes wrong with the next payments; "none" is one that goes well."""
        self.bank.faults.queue.extend(Fault(kind, seconds) for kind in kinds)

    def run(self, operation_id: UUID, handler: Handler | None = None, database: Database | None = None) -> str:
        """Deliver the due step, which pays, and return its outcome."""
        return str(self.deliver(operation_id, handler or self.pay, database).outcome)

    def die(self, operation_id: UUID, when: str, what: str) -> None:
        """Deliver the due step in another process, which dies; then its lease expires and reconcile runs."""
        environment = {"PAYMENTS_KEY": "sk_test_local", "PAYMENTS_URL": self.bank.url}
        Attempt(Place(self.url, self.path, "payments", environment), self.due(operation_id), Death(when, what)).died()
        self.expire_leases()
        self.reconcile()

    def look_up(self) -> int:
        """Let time pass until unresolved steps are queued to be looked up."""
        self.pass_time()
        return drained(lookups.batches, self.outbox, self.pipeline)["looked_up"]

    @property
    def wire(self) -> list[tuple[str, str]]:
        """Key and body of every request for a payment, as it arrived."""
        return [(request["key"], request["body"]) for request in self.bank.requests]

    @property
    def paid(self) -> int:
        """How many payments were really made."""
        return len(self.bank.ledger())

    def wait_for_payment(self) -> None:
        """Return when the payment that hangs inside the provider has been made."""
        deadline = time.monotonic() + 20
        while not self.paid:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def check_wire(self, requests: int, paid: int = 1) -> None:
        """There were so many requests, all of them the same bytes under one key, and so many payments."""
        assert len(self.wire) == requests
        assert len(set(self.wire)) == 1
        assert self.paid == paid


class Interrupted(Database):
    """A database before whose named query something else happens, once."""

    def __init__(self, connect: Callable[[], Any], query: str, event: Callable[[], object]) -> None:
        super().__init__(connect)
        self._query, self._event = query, event

    def run(self, name: str, /, **parameters: Any) -> list[Row]:
        if name == self._query:
            self._query = ""
            self._event()
        return super().run(name, **parameters)


def swallowing(handler: Handler, error: type[Exception], then: Exception | None) -> Handler:
    """Return a handler that catches what the effect raises, and raises something else or succeeds."""

    def handle(ctx: StepContext) -> dict[str, Any] | None:
        try:
            return handler(ctx)
        except error:
            if then is not None:
                raise then from None
            return {}

    return handle
