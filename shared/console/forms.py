"""Forms: nobody but the person who was shown a form can send it, and what it carries is read here."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Request as HttpRequest

from shared import ijson
from shared.console.settings import ConsoleSettings
from shared.errors import ForbiddenError, InvalidJsonError, InvalidRequestError
from shared.review.decide import Declared, Seen
from shared.review.plan import MODES, Mode
from shared.steps import MAX_RESULT_BYTES

TOKEN_FIELD = "token"  # noqa: S105 - a field's name
LIFETIME = 43_200  # seconds; a shift with its hand-over, so that a form left open in the evening is not sent next day
SKEW = 300  # seconds that another instance's clock may be ahead
MAX_FORM_BYTES = MAX_RESULT_BYTES * 3 + 200_000  # a result, percent-encoded, and what else a form has
MAX_FORM_PARTS = 1000
MAX_ITEMS = 200  # of one bulk action: each is a transaction of its own

_ITEM = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})(?:/([a-z][a-z0-9_-]{0,99}))?")
_SEEN = re.compile(r"(?P<item>[0-9a-z/_-]{36,140}):(?P<generation>[0-9]{1,9}):(?P<version>[0-9]{1,9})")


class FormError(ForbiddenError):
    """The form was not made for you here, or is too old: go back, reload the page and send it again."""


class Signer:
    """Makes and checks the token of a form: an HMAC over the person's name and the time, under the shared secret."""

    def __init__(self, settings: ConsoleSettings) -> None:
        secret = settings.console_secret
        self._secret = secret.get_secret_value().encode() if secret else secrets.token_bytes(32)

    def token(self, name: str) -> str:
        """Return a token for a person, good for twelve hours in every instance."""
        issued = str(int(time.time()))
        return f"{issued}.{self._signature(name, issued)}"

    def check(self, request: HttpRequest, name: str) -> None:
        """Raise FormError unless a request was sent by our own page, with the person's token."""
        origin, site = request.headers.get("Origin"), request.headers.get("Sec-Fetch-Site")
        if site not in (None, "same-origin") or (origin is None and site is None):
            raise FormError
        if origin is not None and urlsplit(origin).netloc != request.host:
            raise FormError
        issued, _, signature = request.form.get(TOKEN_FIELD, "").partition(".")
        if not re.fullmatch(r"[0-9]{1,12}", issued) or not signature.isascii():
            raise FormError
        good = hmac.compare_digest(signature, self._signature(name, issued))
        if not good or not -SKEW <= time.time() - int(issued) <= LIFETIME:
            raise FormError

    def _signature(self, name: str, issued: str) -> str:
        return hmac.new(self._secret, f"console-form\n{issued}\n{name}".encode(), hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class Target:
    """What a decision is about: a step of an operation, or a letter (`id`) that belongs to none."""

    id: UUID
    step: str | None

    def __str__(self) -> str:
        return f"{self.id}/{self.step}" if self.step else str(self.id)


def targets(values: MultiDict[str, str]) -> list[Target]:
    """Read the items that were chosen, each once; raises InvalidRequestError for none or too many."""
    found = list(dict.fromkeys(_target(text) for text in values.getlist("item")))
    if not found:
        raise _invalid("choose at least one dead letter")
    if len(found) > MAX_ITEMS:
        raise _invalid(f"choose at most {MAX_ITEMS} at once")
    return found


def seen(values: MultiDict[str, str]) -> dict[Target, Seen]:
    """Read what a dry run showed of each item that was chosen; raises InvalidRequestError."""
    found = {}
    for text in values.getlist("seen")[: MAX_ITEMS + 1]:
        match = _SEEN.fullmatch(text)
        if match is None:
            raise _invalid("the form is not one of ours")
        found[_target(match["item"])] = Seen(int(match["generation"]), int(match["version"]))
    if not found:
        raise _invalid("choose at least one step")
    if len(found) > MAX_ITEMS:
        raise _invalid(f"choose at most {MAX_ITEMS} at once")
    return found


def mode_of(values: MultiDict[str, str]) -> Mode:
    """Read how steps are replayed, `resume` by default; raises InvalidRequestError."""
    text = values.get("mode", "resume")
    for mode in MODES:
        if mode == text:
            return mode
    raise _invalid(f"mode is one of {', '.join(MODES)}")


def declared(values: MultiDict[str, str]) -> dict[str, Declared]:
    """Read what is said of each open effect, leaving out those of which nothing is; raises InvalidRequestError."""
    names = values.getlist("effect")
    found = {}
    for number, name in enumerate(names):
        what = values.get(f"outcome-{number}")
        if what == "happened":
            reference = values.get(f"reference-{number}", "").strip() or None
            answer = _object(values.get(f"answer-{number}", ""), "the provider's answer")
            found[name] = Declared(happened=True, reference=reference, response=answer)
        elif what == "absent":
            found[name] = Declared(happened=False)
    return found


def result_of(values: MultiDict[str, str]) -> dict[str, Any] | None:
    """Read a step's result, None when the field is empty; raises InvalidRequestError."""
    return _object(values.get("result", ""), "the result")


def _object(text: str, what: str) -> dict[str, Any] | None:
    if not text.strip():
        return None
    try:
        value = ijson.parse(text.strip().encode("utf-8", "surrogatepass"), max_bytes=MAX_RESULT_BYTES)
    except InvalidJsonError as error:
        raise _invalid(f"{what} is not JSON: {error.detail}") from None
    if not isinstance(value, dict):
        raise _invalid(f"{what} is a JSON object, like {{}} or one with members")
    return value


def _target(text: str) -> Target:
    match = _ITEM.fullmatch(text)
    if match is None:
        raise _invalid("an item is an operation's id and a step, or a dead letter's id")
    return Target(UUID(match[1]), match[2])


def _invalid(detail: str) -> InvalidRequestError:
    return InvalidRequestError("invalid-request", detail)
