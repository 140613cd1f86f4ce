"""What a person decides about a step that came to rest: let it go on, or let an effect be sent under a fresh key.

Nothing else in Echoproof does either. Both are guarded by the step's state, so that of two people one is told that
the other was faster.
"""

from __future__ import annotations

import logging
from typing import Any
from uuid import UUID

from shared.database import Runner
from shared.effects import provider_key
from shared.errors import ConflictError, NotFoundError, sanitise
from shared.outbox import WRITER_LEASE
from shared.publisher import Dispatch

MAX_DECISION = 500  # characters of actor and reason that a row keeps

log = logging.getLogger(__name__)


class NotResumableError(ConflictError):
    """The step does not rest: it runs, waits its turn or has ended well, or somebody has resumed it already."""


class NotRenewableError(ConflictError):
    """The effect may have happened, or its step does not rest, so no fresh key is made for it."""


def resume(
    database: Runner, operation_id: UUID, step: str, actor: str, reason: str, writer_lease: float = WRITER_LEASE
) -> Dispatch:
    """Queue a step that is unresolved, exhausted or failed again, with its whole budget, and return its dispatch.

    Its effects keep their keys: what is confirmed is skipped, what is open is looked up or sent again as ever. The
    caller publishes the dispatch after this commit; the relay does otherwise. Raises NotResumableError.
    """
    decision = _decision("resumed", actor, reason)
    rows = database.run(
        "resume_step", operation_id=operation_id, step=step, decision=decision, writer_lease=writer_lease
    )
    if not rows:
        raise NotResumableError
    log.info("step resumed by review", extra={"operation_id": str(operation_id), "step": step})
    return Dispatch(*rows[0])


def renew_effect(database: Runner, operation_id: UUID, step: str, name: str, actor: str, reason: str) -> int:
    """Approve a new generation of one effect, whose next send has a fresh key, and return its number.

    Only for an effect that is known not to have happened: rejected, or proved not to have been sent; the step must
    rest. Raises NotFoundError, and NotRenewableError for what is confirmed, intended, unknown or approved already.
    """
    which: dict[str, Any] = {"operation_id": operation_id, "step": step, "name": name}
    found = database.run("read_effect_identity", **which)
    if not found:
        raise NotFoundError
    effect = found[0]
    key = provider_key(effect.tenant, effect.type, effect.key, step, name, effect.generation + 1)
    decision = _decision("renewed", actor, reason)
    rows = database.run("renew_effect", **which, generation=effect.generation, provider_key=key, decision=decision)
    if not rows:
        raise NotRenewableError(f"{NotRenewableError.default_message()}: it is {effect.state}")
    generation: int = rows[0].generation
    log.info("effect renewed by review", extra={"operation_id": str(operation_id), "step": step, "effect": name})
    return generation


def _decision(what: str, actor: str, reason: str) -> str:
    """Return what the rows keep of a decision; the logs hold neither the actor nor the text."""
    return sanitise(f"{what} by {actor}: {reason}", MAX_DECISION)
