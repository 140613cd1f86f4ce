"""The step's state machine: every edge, with the actors that may take it.

The same edges are guarded in SQL (`step_edge_is_legal` in migrations/0001, and by actor `step_edge_actors` in
migrations/0011); tests compare, and walk every pair. The diagram in docs/states.md is tested against this table too.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType


class State(StrEnum):
    """State of a step."""

    WAITING = "waiting"
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNRESOLVED = "unresolved"
    EXHAUSTED = "exhausted"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"


class Actor(StrEnum):
    """Who moves a step."""

    ADMIT = "admit"
    CLAIM = "claim"
    SETTLE = "settle"
    RECONCILE = "reconcile"
    RELAY = "relay"
    CANCEL = "cancel"
    REVIEW = "review"


Edge = tuple[State, State]

TRANSITIONS: MappingProxyType[Edge, frozenset[Actor]] = MappingProxyType(
    {
        (State.WAITING, State.QUEUED): frozenset({Actor.ADMIT, Actor.SETTLE, Actor.RECONCILE, Actor.REVIEW}),
        (State.WAITING, State.CANCELLED): frozenset({Actor.CANCEL, Actor.REVIEW}),
        (State.QUEUED, State.RUNNING): frozenset({Actor.CLAIM}),
        (State.QUEUED, State.EXHAUSTED): frozenset({Actor.CLAIM, Actor.RELAY, Actor.RECONCILE}),
        # Whoever cancels or exhausts a queued step with an open effect leaves it unresolved (check_step_change).
        (State.QUEUED, State.UNRESOLVED): frozenset({Actor.CLAIM, Actor.CANCEL, Actor.RELAY, Actor.RECONCILE}),
        (State.QUEUED, State.CANCELLED): frozenset({Actor.CLAIM, Actor.CANCEL}),
        (State.RUNNING, State.SUCCEEDED): frozenset({Actor.SETTLE}),
        (State.RUNNING, State.QUEUED): frozenset({Actor.SETTLE, Actor.RECONCILE}),
        (State.RUNNING, State.FAILED): frozenset({Actor.SETTLE}),
        (State.RUNNING, State.UNRESOLVED): frozenset({Actor.SETTLE, Actor.RECONCILE}),
        (State.RUNNING, State.EXHAUSTED): frozenset({Actor.SETTLE, Actor.RECONCILE}),
        (State.UNRESOLVED, State.QUEUED): frozenset({Actor.RECONCILE, Actor.REVIEW}),
        (State.UNRESOLVED, State.SUCCEEDED): frozenset({Actor.REVIEW}),
        (State.UNRESOLVED, State.DISCARDED): frozenset({Actor.REVIEW}),
        (State.EXHAUSTED, State.QUEUED): frozenset({Actor.REVIEW}),
        (State.EXHAUSTED, State.SUCCEEDED): frozenset({Actor.REVIEW}),
        (State.EXHAUSTED, State.DISCARDED): frozenset({Actor.REVIEW}),
        (State.FAILED, State.QUEUED): frozenset({Actor.REVIEW}),
        (State.FAILED, State.SUCCEEDED): frozenset({Actor.REVIEW}),
        (State.FAILED, State.DISCARDED): frozenset({Actor.REVIEW}),
    }
)

ALIVE = frozenset({State.QUEUED, State.RUNNING})
IN_REVIEW = frozenset({State.UNRESOLVED, State.EXHAUSTED})
RESTING_STEPS = IN_REVIEW | {State.FAILED}  # what a review action may move
UNFINISHED = ALIVE | {State.WAITING}
