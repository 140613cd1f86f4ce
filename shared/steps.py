"""A step's state: claim it for one message, hold it by a lease, settle it under its fence.

Every write here is guarded and says whether it landed. A message is only an invitation: what may start is decided
by the step's row, and an expired lease is moved by reconcile alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from shared import ijson
from shared.database import Database, Row, Runner
from shared.errors import InvalidJsonError, LeaseLostError, sanitise
from shared.outbox import WRITER_LEASE
from shared.pipeline import Step
from shared.publisher import Dispatch

MAX_RESULT_BYTES = 262_144  # a result is read by the steps that need it and shown in status; files go to storage
MAX_ERROR = 2000  # characters of error text kept


class Refusal(StrEnum):
    """Why a message may not start its step; each is acknowledged, because something else owns the step."""

    DONE = "done"
    BUSY = "busy"
    STALE = "stale"
    EARLY = "early"
    HELD = "held"  # paused, or its provider's circuit is open
    PROBE = "probe"  # as held, but a step may try the provider now
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    UNRESOLVED = "unresolved"
    PRUNED = "pruned"
    UNKNOWN = "unknown"


# What a step that its message could not start has become; still queued: a confirmed effect has spared it a cancel.
REFUSALS = {
    "exhausted": Refusal.EXHAUSTED,
    "cancelled": Refusal.CANCELLED,
    "unresolved": Refusal.UNRESOLVED,
    "queued": Refusal.EARLY,
}


class Outcome(StrEnum):
    """How an attempt that did not succeed ends."""

    RETRY = "retry"
    WAIT = "wait"
    HANDED_BACK = "handed_back"
    FAILED = "failed"
    UNRESOLVED = "unresolved"
    INCOMPATIBLE = "incompatible"  # ends exhausted, for review


@dataclass(frozen=True)
class NotClaimed:
    """A message that starts nothing, and the recorded result when the step is done."""

    refusal: Refusal
    result: Any = None


@dataclass(frozen=True)
class Claim:
    """One attempt's hold on a step: what it works on, and the fence that every write of it must match.

    `ending`: the operation was cancelled or is past its deadline, so that this attempt may look up and send nothing.
    """

    operation_id: UUID
    policy: Step
    traceparent: str | None
    attempt: int
    fence: int
    failures: int
    waits: int
    generation: int
    tenant: str
    key: str
    input: dict[str, Any]
    accepted_at: datetime
    deadline: datetime | None
    ending: bool
    results: Mapping[str, Any]

    @property
    def guard(self) -> dict[str, Any]:
        """The parameters that every fenced statement takes."""
        return {"operation_id": self.operation_id, "step": self.policy.name, "fence": self.fence}


def claim(database: Database, policy: Step, message: Dispatch) -> Claim | NotClaimed:
    """Start the step for this message if it may, in a transaction of its own.

    The attempt is counted before it runs, so a process that always dies is bounded. Otherwise the answer says
    what owns the step; a step whose budget or deadline is spent, or that was cancelled, is ended here.
    """
    which: dict[str, Any] = {
        "operation_id": message.operation_id,
        "step": message.step,
        "type": message.type,
        "dispatch": message.dispatch,
        "attempts": policy.attempts,
        "step_deadline": policy.deadline and policy.deadline.total_seconds(),
    }
    if held := _start(database, policy, message, which, probing=False):
        return held
    refused = database.run("refuse_step", **which)
    if refused:
        return NotClaimed(REFUSALS[refused[0].state])
    answer = explain(database, message, policy.providers)
    if answer.refusal is Refusal.PROBE:
        return _probe(database, policy, message, which) or NotClaimed(Refusal.HELD)
    return answer


def _start(
    database: Database, policy: Step, message: Dispatch, which: dict[str, Any], *, probing: bool
) -> Claim | None:
    """Run the claim; None when it did not land. Repeated on another connection it lands once at most."""
    rows = database.run(
        "claim_step",
        repeat_if_lost=True,
        lease=policy.lease.total_seconds(),
        providers=list(policy.providers),
        probing=probing,
        **which,
    )
    if not rows:
        return None
    row = rows[0]._asdict()
    return Claim(message.operation_id, policy, message.traceparent, results=row.pop("results") or {}, **row)


def _probe(database: Database, policy: Step, message: Dispatch, which: dict[str, Any]) -> Claim | None:
    """Start the step as the one that may try a provider whose circuit is open, unless another was faster."""
    lease = policy.lease.total_seconds()
    if not database.run("take_probe", providers=list(policy.providers), lease=lease):
        return None
    return _start(database, policy, message, which, probing=True)


def explain(database: Database, message: Dispatch, providers: Sequence[str] = ()) -> NotClaimed:
    """Say why a message may not start its step, whose effects go to these providers."""
    row = database.run(
        "explain_claim", operation_id=message.operation_id, step=message.step, providers=list(providers)
    )[0]
    if not row.known:
        return NotClaimed(Refusal.UNKNOWN)
    if row.type is None:
        return NotClaimed(Refusal.PRUNED)
    if row.state is None or row.type != message.type:
        return NotClaimed(Refusal.UNKNOWN)
    if row.state == "running":
        return NotClaimed(Refusal.BUSY)
    if row.state == "waiting":
        return NotClaimed(Refusal.STALE)
    if row.state == "queued":
        return NotClaimed(_why_queued(row, message))
    return NotClaimed(Refusal.DONE, row.result)


def _why_queued(row: Row, message: Dispatch) -> Refusal:
    if row.dispatch != message.dispatch:
        return Refusal.STALE
    if row.early:
        return Refusal.EARLY
    if row.paused or row.half_open is False:
        return Refusal.HELD
    return Refusal.PROBE if row.half_open else Refusal.STALE


def extend(database: Database, held: Claim, margin: timedelta) -> bool:
    """Heartbeat: extend the lease, never past the attempt's timeout and margin; return whether a cancel was asked for.

    Raises LeaseLostError when the fence no longer holds the step.
    """
    rows = database.run(
        "extend_lease",
        repeat_if_lost=True,  # a lease only ever moves forward
        lease=held.policy.lease.total_seconds(),
        longest=(held.policy.timeout + margin).total_seconds(),
        **held.guard,
    )
    if not rows:
        raise LeaseLostError
    return bool(rows[0].cancelled)


def hold(runner: Runner, held: Claim) -> None:
    """Lock the step's row for the rest of the transaction; raises LeaseLostError when the fence no longer holds it."""
    if not runner.run("hold_step", **held.guard):
        raise LeaseLostError


def succeed(runner: Runner, held: Claim, result: Any, writer_lease: float = WRITER_LEASE) -> tuple[str, list[Dispatch]]:
    """Complete the step and return its new state and the dispatches of the steps that this made due.

    The state is `succeeded`, or `unresolved` when an effect of the step is open. Raises LeaseLostError when the fence
    no longer holds the step (the caller's transaction must then roll back), InvalidJsonError for a result that cannot
    be stored.
    """
    rows = runner.run(
        "settle_succeeded",
        result=_stored(result),
        type=held.policy.type,
        writer_lease=writer_lease,
        traceparent=held.traceparent,
        **held.guard,
    )
    if not rows:
        raise LeaseLostError
    return rows[0].state, [
        Dispatch(held.operation_id, held.policy.type, row.step, row.dispatch, held.traceparent)
        for row in rows
        if row.step is not None
    ]


def fail(
    runner: Runner,
    held: Claim,
    outcome: Outcome,
    kind: str,
    text: str,
    delay: timedelta,
    writer_lease: float = WRITER_LEASE,
) -> tuple[str, list[Dispatch]]:
    """End an attempt that did not succeed and return the step's new state and what its writer hands over.

    A retry is charged to the budget, a wait is refunded and bounded by the step's maximum of waits; beyond either
    the step is exhausted. A step that is handed back is neither charged nor bounded. Raises LeaseLostError when the
    fence no longer holds the step.
    """
    rows = runner.run(
        "settle_failed",
        outcome=outcome.value,
        error_kind=sanitise(kind, 100),
        error=sanitise(text, MAX_ERROR),
        delay=delay.total_seconds(),
        attempts=held.policy.attempts,
        max_waits=held.policy.max_waits,
        type=held.policy.type,
        writer_lease=writer_lease,
        traceparent=held.traceparent,
        **held.guard,
    )
    if not rows:
        raise LeaseLostError
    row = rows[0]
    again = Dispatch(held.operation_id, held.policy.type, held.policy.name, row.dispatch, held.traceparent, row.due_at)
    return row.state, [again] if row.state == "queued" and row.due else []


def read_back(database: Database, held: Claim) -> tuple[str, list[Dispatch]] | None:
    """Return what a settle under this fence has written, as `succeed` and `fail` do; None when there was none.

    Of what became due only rows are returned that nobody has published yet.
    """
    rows = database.run("read_back_settle", repeat_if_lost=True, **held.guard)
    if not rows:
        return None
    return rows[0].state, [
        Dispatch(held.operation_id, held.policy.type, row.step, row.dispatch, held.traceparent)
        for row in rows
        if row.step is not None
    ]


def _stored(result: Any) -> str | None:
    if result is None:
        return None
    text = ijson.canonical(result)
    if len(text) > MAX_RESULT_BYTES:
        raise InvalidJsonError(f"a result has at most {MAX_RESULT_BYTES} bytes; put files into storage")
    return text.decode()
