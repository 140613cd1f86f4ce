"""Providers of outside effects, behind one small protocol; docs/effects.md says how to write one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Protocol


@dataclass(frozen=True)
class Confirmed:
    """The provider did it: what it answered (JSON), and its own id of the effect."""

    response: dict[str, Any]
    reference: str


@dataclass(frozen=True)
class NotSent:
    """Proof that nothing ran: the connection was refused, or the provider said so (429). It may be sent again."""

    reason: str
    after: timedelta | None = None


@dataclass(frozen=True)
class Rejected:
    """A definite no. It counts only when every earlier send has a definite answer of its own."""

    reason: str


@dataclass(frozen=True)
class Ambiguous:
    """No answer, or one that does not tell whether it was done: timeout, lost connection, 5xx, 409 in progress, 412.

    `final`: the provider will give this same answer to the same key again, so that only a lookup can tell more.
    """

    reason: str
    after: timedelta | None = None
    final: bool = False


Outcome = Confirmed | NotSent | Rejected | Ambiguous


@dataclass(frozen=True)
class Found:
    """The effect exists: as `Confirmed`."""

    response: dict[str, Any]
    reference: str


@dataclass(frozen=True)
class Absent:
    """The provider does not have it now. Whether that is proof is decided by the ledger, from time and visibility."""


@dataclass(frozen=True)
class NotKnown:
    """The provider could not say."""

    reason: str


Lookup = Found | Absent | NotKnown


class Provider(Protocol):
    """What the ledger must know of a provider.

    `idempotent`: the same key and bytes again have no second effect, for `horizon` after the first send.
    `visibility`: its longest delay from a client's timeout to a visible effect; None: it cannot say, so that absence
    is never proof. `timeout`: of one send, from its permit; `send` must have returned by then.
    """

    name: str
    idempotent: bool
    horizon: timedelta
    visibility: timedelta | None
    timeout: timedelta

    def encode(self, request: Any) -> bytes:
        """Return the exact bytes of a request, as they are stored and sent; raises InvalidJsonError or ValueError."""
        ...

    def essence(self, request: bytes) -> bytes:
        """Return what makes the effect this one and no other: what stays the same when its spelling changes."""
        ...

    def send(self, key: str, request: bytes) -> Outcome:
        """Send it once, with no retry of its own; never raises for what a provider or a network can do."""
        ...

    def lookup(self, key: str, request: bytes) -> Lookup:
        """Ask whether the effect exists; never raises for what a provider or a network can do."""
        ...
