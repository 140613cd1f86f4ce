"""What pages and actions have to work with, and what they return: a page, a redirect, or why not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shared.database import Database
from shared.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    RetryableError,
    UnauthenticatedError,
)
from shared.pipeline import Pipeline
from shared.review.decide import PlanAgedError


class Desk(NamedTuple):
    """What every page and action works with."""

    database: Database
    pipeline: Pipeline


@dataclass(frozen=True)
class Page:
    """A template and the values in it."""

    template: str
    values: dict[str, Any]
    status: int = 200


@dataclass(frozen=True)
class Redirect:
    """Where to look after something was done: an address of our own."""

    to: str


@dataclass(frozen=True)
class Refusal:
    """Why there is no page: the status, a title, and what a person can do about it; safe to show."""

    status: int
    title: str
    text: str
    headers: dict[str, str] = field(default_factory=dict)


def refusal_of(error: BaseException) -> Refusal:
    """Say why not; an error that was not made to be told is no more than "something went wrong"."""
    match error:
        case UnauthenticatedError():
            return Refusal(401, "Who are you?", "The console is reached through Identity-Aware Proxy, which says so.")
        case ForbiddenError():
            return Refusal(403, "Not yours to do", _sentence(error))
        case NotFoundError():
            return Refusal(404, "Not found", "There is nothing at this address, or not any more.")
        case PlanAgedError():
            text = "Since you looked, the step or one of its effects has changed. Nothing was done: look again."
            return Refusal(412, "This has changed meanwhile", text)
        case ConflictError():
            return Refusal(409, "Not possible now", f"{_sentence(error)} Nothing was done.")
        case InvalidRequestError():
            return Refusal(400, "Something is missing or wrong", _sentence(error.detail))
        case RetryableError():
            text = "The database does not answer at the moment. Nothing was changed; what is under way goes on later."
            return Refusal(503, "The database is away", text, {"Retry-After": "5"})
    return Refusal(500, "Something went wrong on our side", "It is in the log, with everything that happened.")


def _sentence(text: object) -> str:
    words = str(text)
    return words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else ".")
