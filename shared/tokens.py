"""Who calls: verifying Google's OIDC tokens on pushes, tasks, schedules and requests to intake.

The same code runs locally, where the local servers sign with a key of their own and serve its certificate.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from shared.errors import ForbiddenError, UnauthenticatedError
from shared.token_certificates import GOOGLE_CERTIFICATES, Certificates

TokenMode = Literal["signature", "platform"]

_BEARER = re.compile(r"bearer +([A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*)", re.IGNORECASE)
LONGEST_TOKEN = 8192  # characters; Google's are about 1,000
_LATEST = 1e11  # seconds since the epoch: the year 5138
_ISSUERS = ("https://accounts.google.com", "accounts.google.com")


@dataclass(frozen=True, slots=True)
class Claims:
    """What a verified token says; times are seconds since the epoch."""

    email: str
    subject: str
    issued_at: float
    expires_at: float


class TokenVerifier:
    """Verifies that a bearer token was issued by Google, for this audience, to one of these accounts.

    `mode` "signature" verifies the signature with the certificates of `certs_url`. "platform" is for a
    function behind Cloud Run's own check, which verifies the signature and then removes it: every claim is
    still checked, but only IAM stands between a forged token and us (INFRA, Tokens). `clock_skew` seconds are
    allowed either way. `emails` None means any verified account: the caller must then decide by
    `Claims.email`. One verifier may serve many threads.
    """

    def __init__(
        self,
        audience: str,
        emails: frozenset[str] | None,
        certs_url: str = GOOGLE_CERTIFICATES,
        mode: TokenMode = "signature",
        clock_skew: float = 10,
    ) -> None:
        if not audience:
            raise ValueError("a verifier without an audience would accept a token that was meant for another")
        self.audience = audience
        self.emails = emails
        self.clock_skew = clock_skew
        self._certificates = Certificates(certs_url) if mode == "signature" else None

    def verify(self, authorization_header: str | None) -> Claims:
        """Return the claims of the token in an Authorization header.

        Raises UnauthenticatedError (401) for a token that is absent, garbage, expired, not yet valid or meant
        for another audience, ForbiddenError (403) for one of another account, and UnavailableError (503) when
        the certificates cannot be had.
        """
        match = _BEARER.fullmatch((authorization_header or "").strip()[:LONGEST_TOKEN])
        if match is None:
            raise UnauthenticatedError("no bearer token")
        claims = self._check(self._payload(match[1]))
        if self.emails is not None and claims.email not in self.emails:
            raise ForbiddenError("the token is of another account")
        return claims

    def _payload(self, token: str) -> Mapping[str, Any]:
        """Decode a token, and verify its signature unless the platform did."""
        from google.auth import jwt

        try:
            certificates = self._certificates and self._certificates.for_key(key_id(token))
            payload: Mapping[str, Any] = jwt.decode(  # type: ignore[no-untyped-call]
                token,
                certs=certificates,
                verify=certificates is not None,
                clock_skew_in_seconds=self.clock_skew,
            )
        except (ValueError, TypeError, RecursionError):  # the library's errors are ValueErrors with the token
            raise UnauthenticatedError("the token is not valid") from None
        return payload

    def _check(self, payload: Mapping[str, Any]) -> Claims:
        """Check every claim; the library has checked some of them, but only with a signature."""
        now = time.time()
        issued, expires = seconds(payload, "iat"), seconds(payload, "exp")
        require(payload.get("aud") == self.audience, "the token is for another audience")
        require(payload.get("iss") in _ISSUERS, "the token is of another issuer")
        require(issued <= now + self.clock_skew, "the token is not yet valid")
        require(now - self.clock_skew <= expires, "the token has expired")
        email, subject = payload.get("email"), payload.get("sub")
        if not isinstance(email, str) or not email or not isinstance(subject, str):
            raise UnauthenticatedError("the token names no account")
        require(payload.get("email_verified") is True, "the token's e-mail is not verified")
        return Claims(email, subject, issued, expires)


def key_id(token: str) -> str:
    """Return which key a token says that it is signed with; raises UnauthenticatedError, ValueError."""
    from google.auth import jwt

    key = jwt.decode_header(token).get("kid")  # type: ignore[no-untyped-call]
    if not isinstance(key, str):
        raise UnauthenticatedError("the token names no key")
    return key


def seconds(payload: Mapping[str, Any], claim: str) -> float:
    """Return a claim that is a time, in seconds since the epoch; raises UnauthenticatedError."""
    value = payload.get(claim)
    # The comparison also refuses NaN, infinity, and an int that no float can hold.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LATEST:
        raise UnauthenticatedError(f"the token's {claim} is missing or wrong")
    return float(value)


def require(held: bool, otherwise: str) -> None:
    """Raise UnauthenticatedError unless something holds."""
    if not held:
        raise UnauthenticatedError(otherwise)
