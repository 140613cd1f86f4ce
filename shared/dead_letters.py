"""Recording what needs a person: one row a (operation, step, generation), or a malformed message.

The row of a step that becomes exhausted or unresolved is written by the database itself, in the transaction that
moves the step (`open_dead_letter` in migrations/0001); here arrive the messages that Pub/Sub gave up.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from shared import envelope, steps
from shared.database import Database, Transaction
from shared.errors import MalformedMessageError
from shared.publisher import Dispatch
from shared.transitions import IN_REVIEW, UNFINISHED

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recorded:
    """What was recorded: the row's state (open or closed), and how often it has been seen."""

    state: str
    occurrences: int


def record(database: Database, body: bytes, headers: dict[str, str]) -> Recorded:
    """Record one delivery of the dead-letter topic; the same one again only counts.

    A step that is still owned by its outbox row or lease, or that has ended, makes this noise: recorded and
    closed. That of a pruned operation is not even recorded. Raises UnavailableError when the database cannot be
    reached.
    """
    try:
        letter = envelope.decode_dead_letter(body, headers)
    except MalformedMessageError as error:
        return record_malformed(database, error)
    recorded = database.in_transaction(lambda transaction: _record_step(transaction, letter))
    return recorded or _record_ownerless(database, letter.message)


def _record_ownerless(database: Database, message: envelope.Message) -> Recorded:
    which = Dispatch(message.operation_id, message.type, message.step, message.dispatch)
    if steps.explain(database, which).refusal is steps.Refusal.PRUNED:
        return Recorded("closed", 0)
    return record_unknown(database, message)


def _record_step(transaction: Transaction, letter: envelope.DeadLetter) -> Recorded | None:
    message = letter.message
    # Locks the step's row, as whatever moves the step does first: so what is recorded here is not overtaken. A lock
    # on the operation would not do: a settle takes that one last, when it may already wait for this review row.
    owners = transaction.run("find_step_owner", operation_id=message.operation_id, step=message.step)
    if not owners:
        return None
    needs_person = owners[0].state in IN_REVIEW
    reason = None if needs_person else f"step is {owners[0].state}"
    if owners[0].state in UNFINISHED:
        reason = f"{reason}: its {'lease' if owners[0].state == 'running' else 'outbox row'} owns it"
    rows = transaction.run(
        "record_step_dead_letter",
        operation_id=message.operation_id,
        step=message.step,
        generation=owners[0].generation,
        cause="undelivered",
        state="open" if needs_person else "closed",
        closed_reason=reason,
        subscription=letter.source_subscription,
        message_id=message.delivery.message_id,
        delivery_count=letter.delivery_count,
    )
    return Recorded(rows[0].state, rows[0].occurrences)


def record_malformed(database: Database, error: MalformedMessageError) -> Recorded:
    """Record a message that cannot be read, once for each content."""
    return _record_message(database, "malformed", error)


def record_unknown(database: Database, message: envelope.Message) -> Recorded:
    """Record a message for an operation or step that does not exist."""
    return _record_message(database, "unknown", envelope.misdirected(message, "no such operation or step"))


def _record_message(database: Database, cause: str, error: MalformedMessageError) -> Recorded:
    log.error("%s message recorded: %s", cause, error.reason)
    rows = database.run(
        "record_message",
        digest=bytes.fromhex(error.digest),
        cause=cause,
        error=error.reason,
        raw=error.excerpt,
        subscription=error.delivery.subscription,
        message_id=error.delivery.message_id,
        delivery_count=error.delivery.attempt,
    )
    return Recorded(rows[0].state, rows[0].occurrences)
