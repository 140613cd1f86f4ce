"""The dry run: what a replay of one step would do, effect by effect, and whether it may be done at all.

A plan names the step's generation and the version of its ledger. A decision carries both, and lands only while they are
still true, so that what a person agreed to is what happens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from shared.database import Database, Row, Transaction
from shared.errors import NotFoundError
from shared.pipeline import Pipeline, UnknownStepError, UnknownTypeError
from shared.transitions import RESTING_STEPS

Mode = Literal["resume", "reconcile_first", "new_generation"]
Verdict = Literal["skip", "resend", "blocked"]
MODES: tuple[Mode, ...] = ("resume", "reconcile_first", "new_generation")
OPEN = frozenset({"intended", "unknown"})


@dataclass(frozen=True)
class EffectPlan:
    """What a replay does with one effect: `skip`, `resend` or `blocked` (nothing is sent before more is known)."""

    name: str
    generation: int
    provider: str
    state: str
    verdict: Verdict
    why: str
    reference: str | None


@dataclass(frozen=True)
class Plan:
    """What a replay of a step would do now; `refusal` says why it may not be done, None that it may."""

    operation_id: UUID
    step: str
    tenant: str
    type: str
    state: str
    generation: int
    ledger_version: int
    dead_letter_id: UUID | None
    mode: Mode
    effects: tuple[EffectPlan, ...]
    refusal: str | None

    @property
    def open_effects(self) -> tuple[str, ...]:
        """Names of the effects whose outcome is not known."""
        return tuple(effect.name for effect in self.effects if effect.state in OPEN)

    def as_record(self) -> dict[str, Any]:
        """Return what the audit keeps: state, generation and the state of each effect."""
        effects = {effect.name: f"{effect.state}, generation {effect.generation}" for effect in self.effects}
        return {"state": self.state, "generation": self.generation, "effects": effects}


def dry_run(
    database: Database,
    pipeline: Pipeline,
    operation_id: UUID,
    step: str,
    mode: Mode = "resume",
    renew: Collection[str] = (),
    *,
    lift_deadline: bool = False,
) -> Plan:
    """Say what a replay would do, and change nothing; raises NotFoundError."""
    return database.in_transaction(
        lambda opened: read(opened, pipeline, operation_id, step, mode, renew, lift_deadline=lift_deadline)
    )


def read(
    opened: Transaction,
    pipeline: Pipeline,
    operation_id: UUID,
    step: str,
    mode: Mode = "resume",
    renew: Collection[str] = (),
    *,
    lift_deadline: bool = False,
) -> Plan:
    """Lock the step and its effects for the rest of the transaction and make the plan; raises NotFoundError."""
    rows = opened.run("lock_step_for_review", operation_id=operation_id, step=step)
    if not rows:
        raise NotFoundError("there is no such operation or step")
    row = rows[0]
    ledger = opened.run("lock_effects_for_review", operation_id=operation_id, step=step)
    effects = tuple(_effect(current, mode, renew) for current in _current(ledger))
    return Plan(
        operation_id,
        step,
        row.tenant,
        row.type,
        row.state,
        row.generation,
        sum(effect.version for effect in ledger),  # versions and rows only grow
        row.dead_letter_id,
        mode,
        effects,
        _refusal(row, pipeline, step, effects, mode, renew, lift_deadline=lift_deadline)
        or _order_refusal(opened, pipeline, row),
    )


def _current(ledger: Sequence[Row]) -> list[Row]:
    """Return the row of each name that counts: a confirmed generation, else the highest."""
    chosen: dict[str, Row] = {}
    for row in ledger:
        if row.name not in chosen or chosen[row.name].state != "confirmed":
            chosen[row.name] = row
    return list(chosen.values())


def _effect(row: Row, mode: Mode, renew: Collection[str]) -> EffectPlan:
    verdict, why = _verdict(row, mode, renewed=mode == "new_generation" and row.name in renew)
    return EffectPlan(row.name, row.generation, row.provider, row.state, verdict, why, row.reference)


def _verdict(row: Row, mode: Mode, *, renewed: bool) -> tuple[Verdict, str]:
    match row.state:
        case "confirmed":
            return "skip", "it happened; the saved answer is used"
        case "rejected" if renewed:
            return "resend", "the provider refused it; it is sent under a fresh key"
        case "rejected":
            return "blocked", f"the provider refused it ({row.reason}); a new generation would ask again"
        case "approved":
            return "resend", "a new generation is approved; it is sent under its fresh key"
        case "not_sent" if renewed:
            return "resend", "it is known not to have happened; it is sent under a fresh key"
    return _verdict_of_open(row, mode)


def _verdict_of_open(row: Row, mode: Mode) -> tuple[Verdict, str]:
    if mode == "reconcile_first":
        return "blocked", "it is looked up first, and sent only on proof that it did not happen"
    if row.state == "not_sent" and row.key_spent:
        return "blocked", "the provider refuses its key; a new generation would use a fresh one"
    if row.state == "not_sent":
        return "resend", "it is known not to have happened; it is sent under its key"
    if row.state == "intended" and row.unaccounted == 0:
        return "resend", "it was never sent"
    if row.key_lives and not row.key_spent:
        return "resend", "the same bytes under the same key, which the provider still recognises"
    return "blocked", "it may have happened: it is looked up first, and sent only on proof that it did not"


def _refusal(
    row: Row,
    pipeline: Pipeline,
    step: str,
    effects: Sequence[EffectPlan],
    mode: Mode,
    renew: Collection[str],
    *,
    lift_deadline: bool,
) -> str | None:
    if row.state not in RESTING_STEPS:
        return f"the step is {row.state}: only one that has failed, is exhausted or unresolved can be replayed"
    try:
        pipeline.step(row.type, step)
    except (UnknownTypeError, UnknownStepError):
        return f"incompatible: pipeline.yaml no longer has the step {row.type}/{step}"
    if row.overdue and not lift_deadline:
        return "the operation's deadline has passed: lift it with the replay"
    if mode == "new_generation":
        return _renewal_refusal(effects, renew)
    return None


def _order_refusal(opened: Transaction, pipeline: Pipeline, row: Row) -> str | None:
    """Refuse while another operation holds the ordering key, whose lock is taken for the rest of the transaction."""
    if row.ordering_key is None:
        return None
    which = {"tenant": row.tenant, "ordering_key": row.ordering_key}
    opened.run("lock_ordering_key", **which)
    holders = opened.run(
        "find_key_holder", operation_id=row.operation_id, going_on=list(pipeline.going_on_in_review), **which
    )
    if not holders:
        return None
    return f"operation {holders[0].id} of the same ordering key is {holders[0].state}: replay when it has ended"


def _renewal_refusal(effects: Sequence[EffectPlan], renew: Collection[str]) -> str | None:
    states = {effect.name: effect.state for effect in effects}
    if not renew:
        return "name the effects that get a new generation"
    for name in sorted(renew):
        if name not in states:
            return f"the step has no effect {name}"
        if states[name] == "confirmed":
            return f"the effect {name} has happened, which is never renewed"
        if states[name] in OPEN:
            return f"the effect {name} may have happened: find out first"
        if states[name] == "approved":
            return f"the effect {name} has a new generation already"
    return None
