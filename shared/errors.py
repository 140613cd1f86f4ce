"""Every error that Echoproof raises, and the rule for error text that is stored.

One base class; three families that say what a second attempt can do about it; the few outcomes that a
handler may raise. The first line of a class's docstring is its default message.
"""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from shared.parcel import Delivery

# All C0 and C1 controls but tab and newline, DEL, and surrogates: PostgreSQL stores neither NUL nor a lone
# surrogate, and a control character in a terminal or a log line can hide what follows it.
_UNSTORABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def sanitise(text: str, limit: int = 2000) -> str:
    r"""Make a text safe to store, log and show.

    Removes NUL, lone surrogates and control characters other than newline and tab, and truncates to `limit`
    characters, the last of which is then an ellipsis. A literal backslash-u text (six plain characters) is
    none of these and survives. Never raises, whatever the text holds (CASES 9).
    """
    clean = _UNSTORABLE.sub("", text)
    if len(clean) <= limit:
        return clean
    return clean[: max(limit - 1, 0)] + "…"[:limit]


class EchoproofError(Exception):
    """Something in Echoproof went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or self.default_message())

    @classmethod
    def default_message(cls) -> str:
        """Return the first line of the class's docstring, without its full stop."""
        return (cls.__doc__ or cls.__name__).strip().splitlines()[0].rstrip(".")


class RetryableError(EchoproofError):
    """The same attempt may succeed later, unchanged."""


class PermanentError(EchoproofError):
    """No retry of the same request can succeed.

    As a handler's outcome: the step fails at once, unless an effect of it is open (then it is unresolved).
    """


class InvalidInputError(PermanentError):
    """The operation's input is not valid.

    As a handler's outcome: the step fails. When an earlier attempt or step of the operation took the same input, a
    deploy has changed what is taken, and the step goes to review as incompatible.
    """


class ConflictError(EchoproofError):
    """Somebody else has moved on in the meantime."""


class RetryLater(RetryableError):  # noqa: N818 - an outcome that handlers raise, named in DESIGN §6
    """The step asks for another attempt later.

    `after` is what a provider asked for (a timedelta, or seconds): such a wait is clamped by the policy and
    does not consume the failure budget. Without `after` it is an ordinary failure: charged, with backoff.
    Raises ValueError for a negative or infinite `after`.
    """

    def __init__(self, after: timedelta | float | None = None, reason: str = "") -> None:
        super().__init__(reason)
        self.after = _as_timedelta(after)
        self.reason = reason


class Unresolved(EchoproofError):  # noqa: N818 - an outcome that handlers raise, named in DESIGN §6
    """The outcome of an external effect is unknown.

    The step becomes unresolved: looked up again by reconcile, or decided by a person; never blindly resent.
    """


class LeaseLostError(ConflictError):
    """The step is no longer held by this attempt, so nothing of it was written."""


LeaseLost = LeaseLostError


class UnavailableError(RetryableError):
    """The infrastructure is away for the moment.

    Raised for the database, queues and providers when no answer came; nothing is known to have happened.
    """


class ConfigError(EchoproofError):
    """The configuration is not usable.

    `problems` lists everything that is wrong with it, one line each, without secret values.
    """

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join([self.default_message() + ":", *(f"  {problem}" for problem in problems)]))
        self.problems = list(problems)


class InvalidJsonError(PermanentError):
    """The text is not I-JSON.

    `detail` says what is wrong, never with a value of the text; `pointer` is an RFC 6901 pointer to the place
    ("" for the whole text, or when the place is not known).
    """

    def __init__(self, detail: str = "", pointer: str = "") -> None:
        super().__init__(f"{pointer}: {detail}" if pointer else detail)
        self.detail = detail or self.default_message()
        self.pointer = pointer


class JsonTooLargeError(InvalidJsonError):
    """The text is larger than the limit."""


class InvalidRequestError(PermanentError):
    """The request does not say what it must say.

    `slug` names the problem type (`shared.problems`), `detail` is safe to send back, `pointer` leads to the
    member of the body that is wrong ("" for the request as a whole).
    """

    def __init__(self, slug: str, detail: str, pointer: str = "") -> None:
        super().__init__(f"{slug}: {pointer + ': ' if pointer else ''}{detail}")
        self.slug = slug
        self.detail = detail
        self.pointer = pointer


class MalformedMessageError(PermanentError):
    """A delivered message cannot be read as one of ours.

    `digest` (SHA-256, hex) is the same for every delivery of the same message, so that it is recorded once;
    `excerpt` is the sanitised beginning of what arrived, for the person who reviews it.
    """

    def __init__(self, reason: str, delivery: Delivery, digest: str, excerpt: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.delivery = delivery
        self.digest = digest
        self.excerpt = excerpt


class UnauthenticatedError(PermanentError):
    """The caller did not prove who it is."""


class ForbiddenError(PermanentError):
    """The caller may not do this."""


class NotFoundError(PermanentError):
    """There is no such thing, or it belongs to somebody else."""


def _as_timedelta(after: timedelta | float | None) -> timedelta | None:
    """Read seconds or a timedelta; raise ValueError unless it is finite and not negative."""
    if after is None:
        return None
    try:
        span = after if isinstance(after, timedelta) else timedelta(seconds=after)
    except OverflowError as error:
        raise ValueError("after must be finite") from error
    if span < timedelta(0):
        raise ValueError("after must not be negative")
    return span
