"""Operations: accepted once an identity, read, listed and cancelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from shared import identity, ijson
from shared.database import Database, Row, Transaction
from shared.errors import ConflictError, NotFoundError, UnavailableError
from shared.identity import Options, Request
from shared.outbox import WRITER_LEASE
from shared.pipeline import Pipeline
from shared.publisher import Dispatch
from shared.request import MAX_BODY_BYTES

ACCEPT_ATTEMPTS = 5  # an identity that is neither insertable nor readable is being written or pruned this moment
CANONICAL_GROWTH = 5  # times; `1e20,` is five bytes, its canonical form twenty-two
FINAL = frozenset({"succeeded", "failed", "cancelled"})
RESTING = FINAL | {"needs_review"}  # states that do not change by themselves


class KeyReusedError(ConflictError):
    """The key was used for a different request; `fields` names what differs, never its values."""

    def __init__(self, fields: list[str]) -> None:
        super().__init__(f"{self.default_message()}: {', '.join(fields)}" if fields else "")
        self.fields = fields


class NotCancellableError(ConflictError):
    """The operation has already come to rest; `state` says how."""

    def __init__(self, state: str) -> None:
        super().__init__(f"the operation is {state}")
        self.state = state


@dataclass(frozen=True)
class Accepted:
    """An operation as it stands after its acceptance: new, or recorded by an earlier request of the same identity.

    `due` is what its caller publishes; it is empty for one that waits for its ordering key or its tenant's room, which
    the caller should have admitted (`admission.admit`) as soon as it may start.
    """

    operation_id: UUID
    new: bool
    due: list[Dispatch]
    waits: bool = False


def accept(
    database: Database,
    pipeline: Pipeline,
    tenant: str,
    key: str,
    request: Request,
    traceparent: str | None = None,
    writer_lease: float = WRITER_LEASE,
) -> Accepted:
    """Record the operation once, with its steps and, if it may start, the outbox rows of its first steps.

    All of it is one statement. With an ordering key, or in a tenant without room, the operation waits to be admitted.

    A request that repeats a recorded one returns that one. When the answer to the commit is lost the statement is
    repeated: it waits for the transaction in doubt and then finds its own row, so nothing is written twice.
    Raises KeyReusedError for another request under the same key, UnavailableError when the database is away.
    """
    parameters = _accept_parameters(pipeline, tenant, key, request, traceparent, writer_lease)
    for _ in range(ACCEPT_ATTEMPTS):
        rows = database.run("accept_operation", repeat_if_lost=True, **parameters)
        if rows:
            due = [Dispatch(r.id, request.type, r.step, r.dispatch, traceparent, r.due_at) for r in rows if r.due]
            return Accepted(rows[0].id, new=True, due=due, waits=not rows[0].admitted)
        recorded = database.run("find_identity", repeat_if_lost=True, tenant=tenant, type=request.type, key=key)
        if recorded:
            _compare(recorded[0], request)
            return Accepted(recorded[0].operation_id, new=False, due=[])
    raise UnavailableError("the identity is being written by another request")


def _accept_parameters(
    pipeline: Pipeline,
    tenant: str,
    key: str,
    request: Request,
    traceparent: str | None,
    writer_lease: float = WRITER_LEASE,
) -> dict[str, Any]:
    operation = pipeline.operation(request.type)
    given = ijson.canonical(request.input)
    steps = list(operation.steps.values())
    return {
        "tenant": tenant,
        "type": request.type,
        "key": key,
        "traceparent": traceparent,
        "fingerprint": identity.fingerprint(request, canonical_input=given),
        "fingerprint_version": identity.FINGERPRINT_VERSION,
        "input": given.decode(),
        "not_before": request.options.not_before,
        "deadline": request.options.deadline,
        "ordering_key": request.options.ordering_key,
        "steps": [step.name for step in steps],
        "needs": [",".join(step.needs) for step in steps],
        "needs_left": [len(step.needs) for step in steps],
        "first_steps": len(operation.first_steps),
        "in_flight": pipeline.limits.in_flight_per_tenant,
        "writer_lease": writer_lease,
    }


def _compare(recorded: Row, request: Request) -> None:
    if identity.fingerprint(request, recorded.fingerprint_version) == bytes(recorded.fingerprint):
        return
    fields = identity.differing_fields(_recorded_request(recorded, request.type), request) if recorded.kept else []
    raise KeyReusedError(fields)


def _recorded_request(recorded: Row, operation_type: str) -> Request:
    given = ijson.parse(recorded.input.encode(), max_bytes=CANONICAL_GROWTH * MAX_BODY_BYTES)
    if not isinstance(given, dict):
        raise TypeError("an input is an object")
    return Request(operation_type, given, Options(recorded.not_before, recorded.deadline, recorded.ordering_key))


def read(database: Database, tenant: str, operation_id: UUID) -> dict[str, Any]:
    """Return one operation with its steps as JSON-ready values; raises NotFoundError."""
    rows = database.run("read_operation", repeat_if_lost=True, operation_id=operation_id, tenant=tenant)
    if not rows:
        raise NotFoundError
    return {name: _plain(value) for name, value in rows[0]._asdict().items() if value is not None}


def list_page(
    database: Database,
    tenant: str,
    *,
    state: str | None,
    operation_type: str | None,
    cursor: UUID | None,
    page_size: int,
) -> tuple[list[dict[str, Any]], UUID | None]:
    """Return a page of a tenant's operations, newest first, and the cursor of the next page if there is one."""
    rows = database.run(
        "list_operations",
        repeat_if_lost=True,
        tenant=tenant,
        state=state,
        type=operation_type,
        cursor=cursor,
        page_size=page_size + 1,
    )
    page = [{k: _plain(v) for k, v in row._asdict().items() if v is not None} for row in rows[:page_size]]
    return page, rows[page_size - 1].id if len(rows) > page_size else None


def cancel(database: Database, tenant: str, operation_id: UUID) -> None:
    """Cancel what has not started and ask what runs to stop; repeating it changes nothing.

    Raises NotFoundError, and NotCancellableError when the operation has come to rest.
    """
    if database.in_transaction(lambda opened: _cancel(opened, tenant, operation_id), repeat_if_lost=True):
        return
    state = read(database, tenant, operation_id)["state"]
    if state != "cancelled":
        raise NotCancellableError(state)


def _cancel(transaction: Transaction, tenant: str, operation_id: UUID) -> bool:
    transaction.run("lock_steps", operation_id=operation_id, tenant=tenant)
    stopped = transaction.run("cancel_operation", operation_id=operation_id, tenant=tenant)
    if stopped:
        transaction.run("drop_outbox_of_stopped_steps", operation_id=operation_id)
    return bool(stopped)


def _plain(value: Any) -> Any:
    if isinstance(value, UUID):
        return str(value)
    return value.isoformat() if hasattr(value, "isoformat") else value
