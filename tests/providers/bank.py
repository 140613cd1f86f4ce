"""The local payment provider, and what to ask of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import requests
import stripe

from local.payments import PaymentServer

SECRET = "sk_test_local"
AUTHORISED = {"Authorization": f"Bearer {SECRET}"}
PAYMENT = {"amount": "1530", "currency": "gbp", "payment_method": "pm_card_visa", "confirm": "true"}


@dataclass
class Bank:
    """A running server, spoken to over HTTP."""

    server: PaymentServer
    url: str

    def pay(self, key: str, given: dict[str, str] | str = PAYMENT, timeout: float = 30.0) -> requests.Response:
        headers = {**AUTHORISED, "Content-Type": "application/x-www-form-urlencoded"}
        if key:
            headers["Idempotency-Key"] = key
        return requests.post(f"{self.url}/v1/payment_intents", given, headers=headers, timeout=timeout)

    def search(self, query: str) -> requests.Response:
        url = f"{self.url}/v1/payment_intents/search"
        return requests.get(url, {"query": query}, headers=AUTHORISED, timeout=30)

    def wrong(self, kind: str, **how: Any) -> None:
        """Order what goes wrong next."""
        order = {"next": [{"kind": kind, **how}]}
        assert requests.post(f"{self.url}/_control/faults", json=order, timeout=30).ok

    def advance(self, seconds: float) -> None:
        assert requests.post(f"{self.url}/_control/clock", json={"advance": seconds}, timeout=30).ok

    def ledger(self) -> list[dict[str, Any]]:
        payments: list[dict[str, Any]] = requests.get(f"{self.url}/_control/ledger", timeout=30).json()
        return payments

    def client(self) -> stripe.StripeClient:
        """Return the official SDK as it comes, but for its address and retries."""
        return stripe.StripeClient(SECRET, base_addresses={"api": self.url}, max_network_retries=0)
