"""Who looks: Identity-Aware Proxy's signed assertion, or the fixed operator of one's own machine."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from werkzeug.wrappers import Request as HttpRequest

from shared.console.settings import ConsoleSettings
from shared.errors import ForbiddenError, UnauthenticatedError
from shared.token_certificates import Certificates
from shared.tokens import LONGEST_TOKEN, key_id, require, seconds

ASSERTION = "X-Goog-IAP-JWT-Assertion"
ISSUER = "https://cloud.google.com/iap"
ALGORITHM = "ES256"
CLOCK_SKEW = 10.0  # seconds, either way

_JWT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]{1,5})?", re.IGNORECASE)

Role = Literal["viewer", "operator"]


@dataclass(frozen=True)
class Person:
    """Who looks: the verified e-mail, or the local operator's name."""

    name: str
    role: Role
    local: bool = False

    @property
    def may_decide(self) -> bool:
        """Whether the person may do anything but look."""
        return self.role == "operator"


class Iap:
    """Verifies IAP's assertions (ES256, issuer, audience, times); may serve many threads."""

    def __init__(self, audience: str, keys_url: str) -> None:
        self._audience = audience
        self._keys = Certificates(keys_url)

    def email(self, assertion: str | None) -> str:
        """Return the e-mail of the person, in lower case.

        Raises UnauthenticatedError for an assertion that is absent or wrong, UnavailableError without keys.
        """
        text = (assertion or "").strip()
        require(len(text) <= LONGEST_TOKEN and _JWT.fullmatch(text) is not None, "no assertion of IAP")
        payload = self._payload(text)
        now = time.time()
        require(payload.get("aud") == self._audience, "the assertion is for another audience")
        require(payload.get("iss") == ISSUER, "the assertion is of another issuer")
        require(seconds(payload, "iat") <= now + CLOCK_SKEW, "the assertion is not yet valid")
        require(now - CLOCK_SKEW <= seconds(payload, "exp"), "the assertion has expired")
        found = payload.get("email")
        if not isinstance(found, str) or not found:
            raise UnauthenticatedError("the assertion names nobody")
        return found.lower()

    def _payload(self, text: str) -> Mapping[str, Any]:
        from google.auth import jwt

        try:
            # Before anything else: with another algorithm the same key could mean something else.
            require(jwt.decode_header(text).get("alg") == ALGORITHM, "the assertion is signed otherwise")  # type: ignore[no-untyped-call]
            keys = self._keys.for_key(key_id(text))
            payload: Mapping[str, Any] = jwt.decode(  # type: ignore[no-untyped-call]
                text, certs=keys, clock_skew_in_seconds=int(CLOCK_SKEW)
            )
        except (ValueError, TypeError, RecursionError):  # the library's errors are ValueErrors with the token
            raise UnauthenticatedError("the assertion is not valid") from None
        return payload


def authenticator(settings: ConsoleSettings) -> Callable[[HttpRequest], Person]:
    """Return how people are recognised; what it returns raises UnauthenticatedError and ForbiddenError."""
    if settings.console_audience is None:
        local = Person(settings.console_local_user or "local", "operator", local=True)
        return lambda request: _at_home(request, local)
    iap = Iap(settings.console_audience, settings.console_keys_url)

    def authenticate(request: HttpRequest) -> Person:
        name = iap.email(request.headers.get(ASSERTION))
        if name in settings.console_operators:
            return Person(name, "operator")
        if name in settings.console_viewers:
            return Person(name, "viewer")
        raise ForbiddenError("you are neither a viewer nor an operator of this console")

    return authenticate


def _at_home(request: HttpRequest, local: Person) -> Person:
    """Answer only under a name of this machine: a page from elsewhere may have its own name lead here."""
    if not _LOOPBACK.fullmatch(request.headers.get("Host", "")):
        raise ForbiddenError("the console of one's own machine answers only as 127.0.0.1 or localhost")
    return local
