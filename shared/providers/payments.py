"""Payments over Stripe's API: idempotent by key for a day, saved answers, lookup by metadata."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any

import stripe
from pydantic import AfterValidator, Field, SecretStr

from shared import ijson
from shared.providers import Absent, Ambiguous, Confirmed, Found, Lookup, NotKnown, NotSent, Outcome, Rejected
from shared.providers.http import NoAnswerError, NotReachedError, exchange
from shared.retry import answered_at, parse_retry_after
from shared.settings import Duration, EnvironmentSettings, http_url

ESSENCE = ("amount", "currency", "payment_method", "customer")
PAID = frozenset({"succeeded", "processing"})
NOT_PAID = frozenset(
    {"canceled", "requires_action", "requires_capture", "requires_confirmation", "requires_payment_method"}
)
CODE = re.compile(r"[a-z0-9_]{1,60}")  # of an error; its other texts may quote what was sent
UNREADABLE = (AttributeError, KeyError, TypeError, ValueError, RecursionError)  # what the SDK raises for odd answers
stripe.enable_telemetry = False  # it keeps an id in a file of the user's, and sends it with each request
KEY_FIELD = "echoproof_key"  # the metadata by which a payment is found again


class PaymentSettings(EnvironmentSettings):
    """Which account to use; a real one by its secret key alone.

    Stripe prunes keys after at least 24 hours (its documentation, "Idempotent requests"), so the horizon ends an hour
    before. Its search shows a payment within a minute, and within an hour when it is behind ("Search").
    """

    payments_key: SecretStr = Field(description="the account's secret key")
    payments_url: Annotated[str, AfterValidator(http_url)] = Field(
        "https://api.stripe.com", description="the URL of the payments API; Stripe's by default"
    )
    payments_horizon: Duration = Field(
        timedelta(hours=23), description="how long the provider recognises a key, like 23h"
    )
    payments_visibility: Duration = Field(
        timedelta(hours=1), description="the longest time until a payment shows in its search, like 1h"
    )
    payments_timeout: Duration = Field(timedelta(seconds=15), description="how long one call may take, like 15s")


class Payments:
    """A payment provider with Stripe's contract."""

    name = "payments"
    idempotent = True

    def __init__(self, settings: PaymentSettings) -> None:
        self.horizon = settings.payments_horizon
        self.visibility: timedelta | None = settings.payments_visibility
        self.timeout = settings.payments_timeout
        self._client = stripe.StripeClient(
            settings.payments_key.get_secret_value(),
            base_addresses={"api": settings.payments_url},
            http_client=_OneExchange(self.timeout.total_seconds()),
            max_network_retries=0,  # the ledger alone decides on another send
        )

    @classmethod
    def from_environment(cls) -> Payments:
        """Open the account that the environment names; raises ConfigError."""
        return cls(PaymentSettings.from_environment())

    def encode(self, request: Mapping[str, Any]) -> bytes:
        """Write the parameters of a confirmed payment intent as canonical JSON."""
        return ijson.canonical({"confirm": True, **request})

    def essence(self, request: bytes) -> bytes:
        """Return who pays how much."""
        parameters = json.loads(request)
        return ijson.canonical({name: parameters[name] for name in ESSENCE if name in parameters})

    def send(self, key: str, request: bytes) -> Outcome:
        """Create and confirm the payment under the key."""
        parameters = json.loads(request)
        parameters["metadata"] = {**parameters.get("metadata", {}), KEY_FIELD: key}
        try:
            intent = self._client.v1.payment_intents.create(parameters, {"idempotency_key": key})
            if intent.status in PAID:
                return Confirmed(_response(intent), str(intent.id))
            if intent.status in NOT_PAID:
                return Rejected(f"the payment is {intent.status}")
        except stripe.StripeError as error:
            return _outcome(error)
        except UNREADABLE:
            return Ambiguous("the answer cannot be read")
        return Ambiguous("the payment is in a state that is not known")

    def lookup(self, key: str, request: bytes) -> Lookup:  # noqa: ARG002 - the key finds it
        """Search for the payment that carries the key."""
        try:
            found = self._client.v1.payment_intents.search({"query": f"metadata['{KEY_FIELD}']:'{key}'"})
            paid = [Found(_response(intent), str(intent.id)) for intent in found.data if intent.status in PAID]
        except stripe.StripeError as error:
            return NotKnown(f"search: {type(error).__name__}")
        except UNREADABLE:
            return NotKnown("search: the answer cannot be read")
        return paid[0] if paid else Absent()


class _OneExchange(stripe.HTTPClient):
    """Carries the SDK's requests: one exchange each, with a deadline for all of it."""

    name = "echoproof"

    def __init__(self, timeout: float) -> None:
        super().__init__()
        self._timeout = timeout

    def request(
        self, method: str, url: str, headers: Mapping[str, str] | None, post_data: Any = None, **_: Any
    ) -> tuple[str, int, Mapping[str, str]]:
        """Send one request; a request that was never sent is told apart by its cause, NotReachedError."""
        body = post_data.encode() if isinstance(post_data, str) else post_data
        try:
            answer = exchange(method.upper(), url, headers or {}, body, self._timeout)
        except (NotReachedError, NoAnswerError) as error:
            raise stripe.APIConnectionError(str(error)) from error  # type: ignore[no-untyped-call]
        return answer.body.decode("utf-8", "replace"), answer.status, answer.headers

    def close(self) -> None:
        """Nothing is kept open."""


def _response(intent: Any) -> dict[str, Any]:
    return {"id": intent.id, "status": intent.status, "amount": intent.amount, "currency": intent.currency}


def _outcome(error: stripe.StripeError) -> Outcome:
    """Return what an error of the SDK says of this one send; texts hold codes, never the account's or payer's data."""
    if isinstance(error, stripe.APIConnectionError):
        if isinstance(error.__cause__, NotReachedError):
            return NotSent(f"not reached: {error.__cause__}")
        return Ambiguous(f"no answer: {error.__cause__}")
    status, code = error.http_status or 0, _code(error.code)
    headers: Mapping[str, str] = error.headers or {}
    after = parse_retry_after(headers.get("retry-after"), answered_at(headers.get("date")))
    if status == 429 or isinstance(error, stripe.RateLimitError):  # which once was a 400
        return NotSent("429", after)
    if status in (401, 403):  # refused before anything ran; somebody mends the key, and the step goes on
        return NotSent(str(status))
    if status == 409:
        return Ambiguous("409: the same key is in progress", after)
    if isinstance(error, stripe.IdempotencyError):
        return Ambiguous("the key was used with other parameters", final=True)
    if isinstance(error, stripe.CardError | stripe.InvalidRequestError):  # in Stripe's words; a proxy's no is no proof
        return Rejected(f"{status} {code}".strip())
    # A saved answer is given again for good, and a failed precondition means that something was done already.
    final = status == 412 or headers.get("idempotent-replayed") == "true"
    return Ambiguous(f"{status} {code}".strip(), after, final=final)


def _code(text: object) -> str:
    return text if isinstance(text, str) and CODE.fullmatch(text) else ""
