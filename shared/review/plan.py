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
    """What a replay of a step would do now; `refusal` says why it may not be done, None that it may.

    `key_held` says which other operation of the ordering key is under way.
    """

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
    key_held: str | None

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
    effects = tuple(_effect(*current, mode, renew) for current in _current(ledger))
    refusal = _refusal(row, pipeline, step, effects, mode, renew, lift_deadline=lift_deadline)
    key_held = _key_held(opened, pipeline, row)
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
        refusal or (key_held and f"{key_held}: replay when it has ended"),
        key_held,
    )


def _current(ledger: Sequence[Row]) -> list[tuple[Row, bool]]:
    """Return the row of each name that counts, and whether another generation of it has happened.

    An open generation counts before a confirmed one, which counts before the highest.
    """
    chosen = {}
    for row in sorted(ledger, key=lambda row: (row.state in OPEN, row.state == "confirmed", row.generation)):
        chosen[row.name] = row
    happened = {row.name for row in ledger if row.state == "confirmed"}
    names = dict.fromkeys(row.name for row in ledger)
    return [(chosen[name], name in happened and chosen[name].state != "confirmed") for name in names]


def _effect(row: Row, happened: bool, mode: Mode, renew: Collection[str]) -> EffectPlan:
    if happened:
        verdict, why = _verdict_beside(row)
    else:
        verdict, why = _verdict(row, mode, renewed=mode == "new_generation" and row.name in renew)
    return EffectPlan(row.name, row.generation, row.provider, row.state, verdict, why, row.reference)


def _verdict_beside(row: Row) -> tuple[Verdict, str]:
    """Say what becomes of an open generation when another one has happened: a late answer came after the renewal."""
    if row.unaccounted == 0:
        return "skip", "another generation happened; this one was never sent and is given up"
    return "blocked", "another generation happened, and this one may have: resolve says whether it did"


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


def _key_held(opened: Transaction, pipeline: Pipeline, row: Row) -> str | None:
    """Say which other operation holds the ordering key of a resting step; the key stays locked in the transaction."""
    if row.ordering_key is None or row.state not in RESTING_STEPS:
        return None
    which = {"tenant": row.tenant, "ordering_key": row.ordering_key}
    opened.run("lock_ordering_key", **which)
    holders = opened.run(
        "find_key_holder", operation_id=row.operation_id, going_on=list(pipeline.going_on_in_review), **which
    )
    if not holders:
        return None
    return f"operation {holders[0].id} of the same ordering key is {holders[0].state}"


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
