"""The decisions of review: replay, resolve, discard, note. Each lands once, in one transaction with its audit row.

All but a note carry the generation and ledger version of the plan that was looked at; when either has changed, or
somebody was faster, nothing happens and the error says so. What a decision makes due is left to the relay's next tick.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar
from uuid import UUID

from shared import ijson
from shared.database import Database, Transaction
from shared.errors import ConflictError, EchoproofError, InvalidRequestError, NotFoundError, sanitise
from shared.pipeline import Pipeline
from shared.review import plan as planning
from shared.review.plan import Mode, Plan
from shared.review.rest import NotResumableError, renew_effect, resume
from shared.transitions import RESTING_STEPS

MAX_ACTOR = 200  # characters
MAX_REASON = 2000  # characters

log = logging.getLogger(__name__)


class PlanAgedError(ConflictError):
    """The step or its effects have changed since the dry run: look at it again."""


class RefusedError(ConflictError):
    """The step's state does not allow this."""


@dataclass(frozen=True)
class By:
    """Who decides, and why; raises InvalidRequestError for an empty reason, whatever else is made storable."""

    actor: str
    reason: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "actor", sanitise(self.actor.strip(), MAX_ACTOR))
        object.__setattr__(self, "reason", sanitise(self.reason.strip(), MAX_REASON))
        if not self.actor or not self.reason:
            raise InvalidRequestError("invalid-request", "a decision needs a reason", "/reason")


@dataclass(frozen=True)
class Seen:
    """What the dry run showed: the step's generation and the version of its ledger."""

    generation: int
    ledger_version: int


@dataclass(frozen=True)
class Declared:
    """What a person found out about an open effect: that it happened, with the provider's own id and answer, or not."""

    happened: bool
    reference: str | None = None
    response: Mapping[str, Any] | None = None


def replay(
    database: Database,
    pipeline: Pipeline,
    operation_id: UUID,
    step: str,
    seen: Seen,
    by: By,
    *,
    mode: Mode = "resume",
    renew: Collection[str] = (),
    lift_deadline: bool = False,
) -> Plan:
    """Queue a resting step again as its next generation and return the plan that is carried out.

    `resume` lets the ledger decide what is sent; `reconcile_first` has every open effect looked up before; and
    `new_generation` gives the effects in `renew`, which are known not to have happened, a fresh key. Raises
    NotFoundError, RefusedError, PlanAgedError.
    """

    def act(opened: Transaction) -> Plan:
        plan = _checked(opened, pipeline, operation_id, step, seen, mode, renew, lift_deadline=lift_deadline)
        if plan.refusal is not None:
            raise RefusedError(plan.refusal)
        for name in sorted(renew) if mode == "new_generation" else ():
            renew_effect(opened, operation_id, step, name, by.actor, by.reason)
        if mode == "reconcile_first":
            opened.run("look_up_first", operation_id=operation_id, step=step)
        lifted = opened.run("lift_deadline", operation_id=operation_id) if lift_deadline else []
        try:
            resume(opened, operation_id, step, by.actor, by.reason, writer_lease=0)
        except NotResumableError as error:
            raise RefusedError(str(error)) from None
        _record(opened, pipeline, "replay", plan, by, mode=mode, lifted=lifted[0].deadline if lifted else None)
        return plan

    return _logged("replay", database.in_transaction(act))


def resolve(
    database: Database,
    pipeline: Pipeline,
    operation_id: UUID,
    step: str,
    seen: Seen,
    by: By,
    *,
    result: Mapping[str, Any] | None = None,
    effects: Mapping[str, Declared] | None = None,
) -> Plan:
    """Settle a resting step by evidence (`by.reason`) and return the plan as it was before.

    `effects` says of each open effect whether it happened. When all did, the step has succeeded with `result`, and what
    needs it starts. When one did not, the ledger learns so and the step stays, to be replayed. Raises NotFoundError,
    RefusedError, PlanAgedError, InvalidRequestError.
    """
    declared = dict(effects or {})

    def act(opened: Transaction) -> Plan:
        plan = _checked(opened, pipeline, operation_id, step, seen)
        _check_declared(plan, declared)
        for name, found in declared.items():
            _declare(opened, plan, name, found, by)
        if all(found.happened for found in declared.values()):
            stored = None if result is None else ijson.canonical(dict(result)).decode()
            rows = opened.run("resolve_step", operation_id=operation_id, step=step, result=stored, writer_lease=0.0)
            if not rows:
                raise RefusedError(f"the step is {plan.state}")
            if rows[0].started and plan.key_held:
                raise RefusedError(f"{plan.key_held}: resolve when it has ended, for this starts what needs the step")
        _record(opened, pipeline, "resolve", plan, by)
        return plan

    return _logged("resolve", database.in_transaction(act))


def discard(database: Database, pipeline: Pipeline, operation_id: UUID, step: str, seen: Seen, by: By) -> Plan:
    """Give a resting step up for good; the operation has failed. Raises NotFoundError, RefusedError, PlanAgedError."""

    def act(opened: Transaction) -> Plan:
        plan = _checked(opened, pipeline, operation_id, step, seen)
        if not opened.run("discard_step", operation_id=operation_id, step=step):
            raise RefusedError(f"the step is {plan.state}")
        _record(opened, pipeline, "discard", plan, by)
        return plan

    return _logged("discard", database.in_transaction(act))


def discard_letter(database: Database, dead_letter_id: UUID, by: By) -> None:
    """Close a letter that belongs to no step. Raises NotFoundError, RefusedError when it is closed or has a step."""

    def act(opened: Transaction) -> None:
        rows = opened.run("read_dead_letter", dead_letter_id=dead_letter_id)
        if not rows:
            raise NotFoundError("there is no such dead letter")
        if rows[0].step is not None:
            raise RefusedError("the letter belongs to a step: decide about the step")
        if not opened.run("close_letter", dead_letter_id=dead_letter_id, decision=f"discarded by {by.actor}"):
            raise RefusedError("the letter is closed")
        _write(
            opened, "discard", by, dead_letter_id=dead_letter_id, before={"state": "open"}, after={"state": "closed"}
        )

    database.in_transaction(act)


def note(
    database: Database,
    by: By,
    *,
    operation_id: UUID | None = None,
    step: str | None = None,
    dead_letter_id: UUID | None = None,
) -> None:
    """Write something down beside an operation, a step or a letter, for whoever looks next. Raises NotFoundError."""

    def act(opened: Transaction) -> None:
        found = (
            opened.run("read_dead_letter", dead_letter_id=dead_letter_id)
            if dead_letter_id is not None
            else opened.run("read_operation_whole", operation_id=operation_id)
        )
        if not found:
            raise NotFoundError("there is no such operation or dead letter")
        which = {"operation_id": operation_id, "step": step, "dead_letter_id": dead_letter_id}
        if dead_letter_id is not None and operation_id is None:
            which |= {"operation_id": found[0].operation_id, "step": found[0].step}
        _write(opened, "note", by, **which, before={}, after={})

    database.in_transaction(act)


T = TypeVar("T")


@dataclass(frozen=True)
class Item(Generic[T]):
    """What became of one item of a bulk action: `error` is None when it was done."""

    item: T
    error: str | None


def each(items: Iterable[T], act: Callable[[T], object]) -> list[Item[T]]:
    """Decide about several items, each on its own: one that cannot be done keeps none of the others from it."""
    report = []
    for item in items:
        try:
            act(item)
        except EchoproofError as error:
            report.append(Item(item, str(error)))
        else:
            report.append(Item(item, None))
    return report


def _checked(
    opened: Transaction,
    pipeline: Pipeline,
    operation_id: UUID,
    step: str,
    seen: Seen,
    mode: Mode = "resume",
    renew: Collection[str] = (),
    *,
    lift_deadline: bool = False,
) -> Plan:
    """Lock the step and make its plan again; raises unless it rests and is what was seen."""
    plan = planning.read(opened, pipeline, operation_id, step, mode, renew, lift_deadline=lift_deadline)
    if plan.state not in RESTING_STEPS:
        raise RefusedError(f"the step is {plan.state}")
    if (plan.generation, plan.ledger_version) != (seen.generation, seen.ledger_version):
        raise PlanAgedError
    return plan


def _check_declared(plan: Plan, declared: Mapping[str, Declared]) -> None:
    for name in declared:
        if name not in plan.open_effects:
            raise InvalidRequestError(
                "invalid-request", f"the step has no open effect {sanitise(name, 100)}", "/effects"
            )
    missing = [name for name in plan.open_effects if name not in declared]
    if missing:
        raise RefusedError(f"say of each open effect whether it happened: {', '.join(missing)}")


def _declare(opened: Transaction, plan: Plan, name: str, found: Declared, by: By) -> None:
    rows = opened.run(
        "declare_effect",
        operation_id=plan.operation_id,
        step=plan.step,
        name=name,
        happened=found.happened,
        response=ijson.canonical(dict(found.response or {})).decode(),
        reference=None if found.reference is None else sanitise(found.reference, 500),
        reason=by.reason[:500],
    )
    if not rows:
        raise PlanAgedError


def _record(
    opened: Transaction,
    pipeline: Pipeline,
    action: str,
    plan: Plan,
    by: By,
    mode: Mode | None = None,
    lifted: datetime | None = None,
) -> None:
    """Write the audit row of a decision, with the deadline that it took away if it did."""
    before, after = plan.as_record(), planning.read(opened, pipeline, plan.operation_id, plan.step).as_record()
    if lifted is not None:
        before, after = before | {"deadline": lifted.isoformat()}, after | {"deadline": None}
    _write(
        opened,
        action,
        by,
        mode=mode,
        dead_letter_id=plan.dead_letter_id,
        operation_id=plan.operation_id,
        step=plan.step,
        generation=plan.generation,
        before=before,
        after=after,
    )


def _write(opened: Transaction, action: str, by: By, *, before: object, after: object, **which: Any) -> None:
    columns = {"mode": None, "dead_letter_id": None, "operation_id": None, "step": None, "generation": None} | which
    opened.run(
        "record_review",
        actor=by.actor,
        action=action,
        reason=by.reason,
        before=ijson.canonical(before).decode(),
        after=ijson.canonical(after).decode(),
        **columns,
    )


def _logged(action: str, plan: Plan) -> Plan:
    log.info("review: %s", action, extra={"operation_id": str(plan.operation_id), "step": plan.step})
    return plan
