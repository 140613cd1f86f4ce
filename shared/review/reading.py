"""What a person sees: the review queue, one letter, operations, and one operation with everything that happened to it.

Inputs and results come without the fields that pipeline.yaml marks as sensitive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from shared.database import Database, Row
from shared.errors import NotFoundError
from shared.pipeline import Pipeline, Sensitive, UnknownTypeError
from shared.redaction import redact
from shared.transitions import RESTING_STEPS, UNFINISHED

CAUSES = ("exhausted", "unresolved", "undeliverable", "incompatible", "malformed", "unknown", "undelivered")
ENDED_BADLY = ("failed", "cancelled", "needs_review")
PAGE_SIZE = 50


@dataclass(frozen=True)
class Letter:
    """One row of the review queue; `verdict` says what became of its step meanwhile."""

    id: UUID
    state: str
    cause: str
    operation_id: UUID | None
    step: str | None
    generation: int | None
    error_kind: str | None
    error: str | None
    occurrences: int
    opened_at: datetime
    last_seen_at: datetime
    closed_at: datetime | None
    closed_reason: str | None
    tenant: str | None
    type: str | None
    key: str | None
    operation_state: str | None
    step_state: str | None
    verdict: str


@dataclass(frozen=True)
class Page:
    """A page and where the next one starts, None at the end."""

    items: tuple[Any, ...]
    cursor: UUID | None


def letters(
    database: Database,
    *,
    states: Sequence[str] = ("open",),
    cause: str | None = None,
    tenant: str | None = None,
    operation_type: str | None = None,
    step: str | None = None,
    cursor: UUID | None = None,
    page_size: int = PAGE_SIZE,
) -> Page:
    """Return a page of the review queue, newest first; `states` is one of open and closed, or both."""
    asked: dict[str, Any] = {
        "cause": cause, "tenant": tenant, "type": operation_type, "step": step, "cursor": cursor,
        "page_size": page_size + 1,
    }  # fmt: skip
    if len(states) == 1:
        rows = database.run("list_dead_letters", repeat_if_lost=True, state=states[0], **asked)
    else:
        rows = database.run("list_all_dead_letters", repeat_if_lost=True, **asked)
    return _page([_letter(row) for row in rows], page_size)


def letter(database: Database, dead_letter_id: UUID) -> dict[str, Any]:
    """Return one letter, whole, with the review actions on it; raises NotFoundError."""
    rows = database.run("read_dead_letter", repeat_if_lost=True, dead_letter_id=dead_letter_id)
    if not rows:
        raise NotFoundError("there is no such dead letter")
    actions = database.run("list_reviews_of_letter", repeat_if_lost=True, dead_letter_id=dead_letter_id)
    found: dict[str, Any] = rows[0]._asdict()
    return found | {"reviews": [row._asdict() for row in actions]}


def operations(
    database: Database,
    *,
    tenant: str | None = None,
    state: str | None = None,
    operation_type: str | None = None,
    key: str | None = None,
    cursor: UUID | None = None,
    page_size: int = PAGE_SIZE,
) -> Page:
    """Return a page of operations, newest first; each kind of search has the statement that begins with its index."""
    unused: tuple[str, ...] = ("key",)
    asked = {"tenant": tenant, "state": state, "type": operation_type, "key": key}
    if key is not None:
        statement, unused = "search_operations_of_key", ()
    elif state in ENDED_BADLY and (tenant is None or state == "cancelled"):
        statement = "search_operations_ended_badly"
    elif tenant is not None:
        every = state is None or state == "succeeded"
        statement = "search_operations_of_tenant" if every else "search_operations_unfinished"
    else:
        statement, unused = "search_operations", ("key", "tenant")
    used = {name: value for name, value in asked.items() if name not in unused}
    rows = database.run(statement, repeat_if_lost=True, cursor=cursor, page_size=page_size + 1, **used)
    return _page(rows, page_size)


def operation(database: Database, pipeline: Pipeline, operation_id: UUID) -> dict[str, Any]:
    """Return one operation with steps, attempts, effects, outbox rows, letters and review actions.

    Raises NotFoundError.
    """
    rows = database.run("read_operation_whole", repeat_if_lost=True, operation_id=operation_id)
    if not rows:
        raise NotFoundError("there is no such operation")
    found: dict[str, Any] = rows[0]._asdict()
    try:
        known = pipeline.operation(found["type"])
    except UnknownTypeError:
        hidden = Sensitive(("*",), ("*",))  # nobody says any more what may be shown
    else:
        hidden, order = known.sensitive, list(known.steps)
        found["steps"].sort(key=lambda step: order.index(step["step"]) if step["step"] in order else len(order))
    found["input"] = redact(found["input"], hidden.input)
    for step in found["steps"]:
        step["result"] = redact(step["result"], hidden.results)
    return found


def verdict(row: Row) -> str:
    """Say what became of a letter's step: the joiner of messages and operations."""
    if row.step is None:
        return "lost: it belongs to no operation"
    if row.step_state is None:
        return "lost: its operation is gone"
    if row.step_state == "succeeded":
        return "already succeeded"
    if row.step_state in UNFINISHED:
        return f"duplicate: the step is {row.step_state} and goes on by itself"
    if row.step_state in RESTING_STEPS:
        return "needs a decision" if row.generation == row.step_generation else "duplicate: of an earlier generation"
    return f"over: the step is {row.step_state}"


def _letter(row: Row) -> Letter:
    shown = {name: getattr(row, name) for name in Letter.__dataclass_fields__ if name != "verdict"}
    return Letter(**shown, verdict=verdict(row))


def _page(rows: Sequence[Any], page_size: int) -> Page:
    shown = tuple(rows[:page_size])
    return Page(shown, shown[-1].id if len(rows) > page_size else None)
