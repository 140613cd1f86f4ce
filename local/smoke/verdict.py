"""What became of one check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import requests

from shared.errors import EchoproofError

Level = Literal["ok", "failed", "not checked"]


@dataclass(frozen=True)
class Verdict:
    """One check: what was looked at, how it stands, and what was found or why it could not be looked at."""

    check: str
    level: Level
    found: str


def ok(check: str, found: str) -> Verdict:
    """Say that something holds."""
    return Verdict(check, "ok", found)


def failed(check: str, found: str) -> Verdict:
    """Say that something does not hold."""
    return Verdict(check, "failed", found)


def not_checked(check: str, why: str) -> Verdict:
    """Say that something could not be looked at, and why: never that it holds."""
    return Verdict(check, "not checked", why)


def judged(check: str, wrong: list[str], found: str) -> Verdict:
    """Say what was found unless something is wrong, else what is."""
    return failed(check, "; ".join(wrong)) if wrong else ok(check, found)


def guarded(check: str, look: Callable[[], Verdict]) -> Verdict:
    """Run one check; whatever it cannot do is a failure with its reason, and the next check goes on."""
    try:
        return look()
    except EchoproofError as error:
        return failed(check, str(error))
    except requests.RequestException as error:
        return failed(check, f"no answer ({type(error).__name__})")
