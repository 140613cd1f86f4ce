"""Pauses: a person holds a step, a tenant or a provider back. Nothing fails meanwhile, and nothing is lost.

A claim of what is paused answers *held*, its outbox row stays, and the relay leaves it alone until the pause ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from shared.database import Database
from shared.errors import ConflictError, InvalidRequestError, NotFoundError, sanitise
from shared.pipeline import Pipeline
from shared.request import check_tenant

Kind = Literal["step", "tenant", "provider"]

MAX_REASON = 500  # characters of actor and reason that are kept

log = logging.getLogger(__name__)


class PausedAlreadyError(ConflictError):
    """It is paused already."""


class NotPausedError(NotFoundError):
    """It is not paused."""


@dataclass(frozen=True)
class Pause:
    """What is paused (`type/step`, a tenant's or a provider's name), by whom, why and since when."""

    kind: Kind
    name: str
    actor: str
    reason: str
    paused_at: datetime


def pause(database: Database, pipeline: Pipeline, kind: Kind, name: str, actor: str, reason: str) -> datetime:
    """Pause a step (`type/step`), a tenant or a provider, and return since when; running attempts go on.

    Raises InvalidRequestError for a name that the pipeline does not have, PausedAlreadyError.
    """
    _check(pipeline, kind, name)
    rows = database.run(
        "pause", kind=kind, name=name, actor=sanitise(actor, MAX_REASON), reason=sanitise(reason, MAX_REASON)
    )
    if not rows:
        raise PausedAlreadyError(f"{kind} {name} is paused already")
    log.warning("paused", extra={"kind": kind, "paused": name})
    paused_at: datetime = rows[0].paused_at
    return paused_at


def resume(database: Database, kind: Kind, name: str) -> None:
    """End a pause; raises NotPausedError.

    The relay publishes what was held back at the next tick; what had just been handed over when the pause began, a
    minute after it was due at the earliest.
    """
    if not database.run("resume_pause", kind=kind, name=name):
        raise NotPausedError(f"{kind} {name} is not paused")
    log.warning("pause ended", extra={"kind": kind, "paused": name})


def listed(database: Database) -> list[Pause]:
    """Return everything that is paused, oldest first."""
    return [Pause(*row) for row in database.run("list_pauses", repeat_if_lost=True)]


def _check(pipeline: Pipeline, kind: Kind, name: str) -> None:
    if kind == "tenant":
        check_tenant(name)
        return
    known = _steps(pipeline) if kind == "step" else _providers(pipeline)
    if name not in known:
        raise InvalidRequestError("invalid-request", f"pipeline.yaml has these {kind}s: {', '.join(sorted(known))}")


def _steps(pipeline: Pipeline) -> set[str]:
    return {f"{step.type}/{step.name}" for step in pipeline.steps}


def _providers(pipeline: Pipeline) -> set[str]:
    named: Iterable[str] = (name for step in pipeline.steps for name in step.providers)
    return set(named)
