"""Signed webhooks (Standard Webhooks): tell the application what happened; it drops what it has seen by webhook-id."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from pydantic import AfterValidator, Field, SecretStr
from standardwebhooks import Webhook as Signature

from shared import ijson
from shared.providers import Ambiguous, Confirmed, Lookup, NotKnown, NotSent, Outcome, Rejected
from shared.providers.http import NoAnswerError, NotReachedError, exchange
from shared.retry import answered_at, parse_retry_after
from shared.settings import Duration, EnvironmentSettings, http_url

SECRET_BYTES = range(24, 65)  # Standard Webhooks, "Signature scheme": between 24 and 64 bytes


def _secret(secret: SecretStr) -> SecretStr:
    """Check what the library does not: it drops characters that are not base64, and takes any key that is left."""
    try:
        prefix, encoded = secret.get_secret_value()[:6], secret.get_secret_value()[6:]
        key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    except ValueError:
        raise ValueError("is not a webhook secret") from None
    if prefix != "whsec_" or len(key) not in SECRET_BYTES:
        raise ValueError("is not a webhook secret")
    return secret


class WebhookSettings(EnvironmentSettings):
    """Where the application listens, and the secret that it shares."""

    webhook_url: Annotated[str, AfterValidator(http_url)] = Field(description="the URL that finished work is told to")
    webhook_secret: Annotated[SecretStr, AfterValidator(_secret)] = Field(
        description="the shared secret: whsec_ and 24 to 64 bytes in base64"
    )
    webhook_horizon: Duration = Field(
        timedelta(hours=24), description="how long the application remembers a webhook-id, like 24h"
    )


class Webhook:
    """One receiver. Idempotent by its promise to drop a webhook-id that it has seen; it cannot be asked."""

    name = "webhook"
    idempotent = True
    visibility: timedelta | None = None
    timeout = timedelta(seconds=15)  # the specification recommends 15 to 30

    def __init__(self, settings: WebhookSettings) -> None:
        self.horizon = settings.webhook_horizon
        self._url = settings.webhook_url
        self._signature = Signature(settings.webhook_secret.get_secret_value())

    @classmethod
    def from_environment(cls) -> Webhook:
        """Use the receiver that the environment names; raises ConfigError."""
        return cls(WebhookSettings.from_environment())

    def encode(self, request: dict[str, Any]) -> bytes:
        """Write `type`, `timestamp` and `data` as canonical JSON, which is the body."""
        return ijson.canonical(request)

    def essence(self, request: bytes) -> bytes:
        """Return what is told, without when."""
        told = json.loads(request)
        return ijson.canonical([told["type"], told["data"]])

    def send(self, key: str, request: bytes) -> Outcome:
        """Post the body, signed for this moment."""
        identifier, now = f"msg_{key[:32]}", datetime.now(UTC)
        headers = {
            "content-type": "application/json",
            "webhook-id": identifier,
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signature.sign(identifier, now, request.decode()),
        }
        try:
            answer = exchange("POST", self._url, headers, request, self.timeout.total_seconds())
        except NotReachedError as error:
            return NotSent(f"not reached: {error}")
        except NoAnswerError as error:
            return Ambiguous(f"no answer: {error}")
        if 200 <= answer.status < 300:
            return Confirmed({"webhook_id": identifier, "status": answer.status}, identifier)
        after = parse_retry_after(answer.headers.get("retry-after"), answered_at(answer.headers.get("date")))
        if answer.status == 410:  # Gone: the receiver wants no more, says the specification
            return Rejected("410")
        if answer.status >= 500 or answer.status in (408, 409):
            return Ambiguous(str(answer.status), after)
        return NotSent(str(answer.status), after)  # a redirect or a no: the receiver did not take it

    def lookup(self, key: str, request: bytes) -> Lookup:  # noqa: ARG002 - there is nobody to ask
        """Say that the receiver cannot be asked."""
        return NotKnown("a webhook's receiver cannot be asked")
