"""The outbox: dispatches that nobody has claimed, handed over at once by their writer and for certain by the relay.

What is due now goes to the step's Pub/Sub topic; what is due within the horizon, and what is paced, to Cloud Tasks.
A row is leased to its writer for a minute when it is born. The writer's hand-over after its commit is a shortcut
that may fail without harm; `relay.run_once` is the guarantee. No row is ever removed here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shared.database import Database
from shared.errors import EchoproofError
from shared.pipeline import Pipeline, Step, UnknownStepError, UnknownTypeError
from shared.publisher import TIMEOUT, Dispatch, InvalidMessageError, Publisher, PublishError
from shared.tasks import Created, Target, Tasks

WRITER_LEASE = 60.0  # seconds that a row belongs to its writer: a publish takes 2 s at most, the relay runs each minute
WRITER_TIMEOUT = 2.0  # seconds for the shortcut: the caller waits for its answer meanwhile
RETURN_AFTER = 5.0  # seconds until the relay may take a row whose publish failed
REFUSAL_LIMIT = 3  # times that a message may be called invalid before its step needs a person
# Hand-overs without a claim before the step needs a person: with the relay's growing pauses, about a day.
UNCLAIMED_LIMIT = 30
INCOMPATIBLE = "pipeline.yaml has no such step"
DELAYED = "delayed"  # the queue of what is due later and not paced

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """What became of leased rows: how many were published and how many not, and what no publish reaches.

    `away` holds the lanes (see `lane_of`) whose topic or queue did not answer.
    """

    published: int
    failed: int
    away: frozenset[str]


class Outbox:
    """Handing outbox rows over, for writers and for the relay.

    `writer_lease` (seconds) is what statements that write rows are given: 0 with `shortcut` false, when no writer
    hands over. Without `tasks`, rows for Cloud Tasks are left to whoever has it.
    """

    def __init__(
        self,
        database: Database,
        pipeline: Pipeline,
        publisher: Publisher,
        tasks: Tasks | None = None,
        *,
        shortcut: bool = True,
    ) -> None:
        self.database = database
        self.pipeline = pipeline
        self.writer_lease = WRITER_LEASE if shortcut else 0.0
        self._publisher = publisher
        self._tasks = tasks

    def publish_at_once(self, dispatches: Sequence[Dispatch]) -> None:
        """Hand over rows just committed, those due later too; never raises: what fails is given to the relay."""
        if self.writer_lease <= 0:
            return
        routes, _ = self._by_route(dispatches)  # the relay parks what has no route
        for route, group in routes.items():
            made = self._hand_over(route, group, WRITER_TIMEOUT)
            back = [*made.left, *(dispatch for dispatch, _ in made.refused)]
            if back:
                log.warning("%d handed over by the relay instead: %s", len(back), made.problem or made.refused[0][1])
                self._give_back(back, delay=0, counted=0)

    def publish_leased(self, dispatches: Sequence[Dispatch]) -> Sent:
        """Hand over rows that the relay has leased and say what became of them.

        A message that is called invalid is backed off and finally parked (its step is exhausted and shows in the
        review queue), and so is one whose step the pipeline does not have; the others go out.
        """
        routes, unknown = self._by_route(dispatches)
        for dispatch in unknown:
            self._refuse(dispatch, "incompatible", INCOMPATIBLE)
        published, away = 0, set[str]()
        for route, group in routes.items():
            made = self._hand_over(route, group, TIMEOUT)
            for dispatch, reason in made.refused:
                self._refuse(dispatch, "undeliverable", reason)
            if made.left:
                log.warning("not published, tried again in %s s: %s", RETURN_AFTER, made.problem)
                self._give_back(made.left, delay=RETURN_AFTER, counted=1)
                away |= {lane_of(dispatch) for dispatch in group}
            published += len(group) - len(made.refused) - len(made.left)
        return Sent(published, len(dispatches) - published, frozenset(away))

    def _hand_over(self, route: str | Target, group: Sequence[Dispatch], timeout: float) -> Created:
        if isinstance(route, str):
            return self._publish(route, group, timeout)
        if self._tasks is None:
            return Created(left=group, problem="this process has no Cloud Tasks")
        return self._tasks.create(route, group, timeout)

    def _publish(self, topic: str, group: Sequence[Dispatch], timeout: float) -> Created:
        """Publish to one topic; a message that Pub/Sub calls invalid is found by bisection."""
        try:
            self._publisher.publish(topic, group, timeout)
        except PublishError as error:
            return Created(left=group, problem=str(error))
        except InvalidMessageError as error:
            if len(group) == 1:
                return Created(refused=[(group[0], str(error))])
            half = len(group) // 2
            first, second = (self._publish(topic, part, timeout) for part in (group[:half], group[half:]))
            problem = first.problem or second.problem
            return Created([*first.refused, *second.refused], [*first.left, *second.left], problem)
        return Created()

    def _refuse(self, dispatch: Dispatch, kind: str, reason: str) -> None:
        rows = self.database.run(
            "refuse_row",
            operation_id=dispatch.operation_id,
            step=dispatch.step,
            dispatch=dispatch.dispatch,
            error_kind=kind,
            error=reason[:500],
            limit=REFUSAL_LIMIT,
        )
        for row in rows:  # none when the row was claimed or cancelled meanwhile
            what = "parked" if row.parked else f"refused {row.refused} times"
            log.error("%s: operation %s step %s: %s", what, dispatch.operation_id, dispatch.step, reason[:500])

    def _give_back(self, group: Sequence[Dispatch], *, delay: float, counted: int) -> None:
        try:
            self.database.run(
                "return_rows",
                operation_ids=[d.operation_id for d in group],
                steps=[d.step for d in group],
                dispatches=[d.dispatch for d in group],
                delay=delay,
                counted=counted,
            )
        except EchoproofError as error:  # the rows' own lease ends too, only later
            log.warning("rows stay leased until their turn: %s", error)

    def _by_route(self, dispatches: Iterable[Dispatch]) -> tuple[Mapping[str | Target, list[Dispatch]], list[Dispatch]]:
        """Group dispatches by topic or queue, and return apart those of steps that the pipeline does not have."""
        routes: dict[str | Target, list[Dispatch]] = defaultdict(list)
        unknown = []
        for dispatch in dispatches:
            try:
                routes[_route(self.pipeline.step(dispatch.type, dispatch.step), dispatch)].append(dispatch)
            except (UnknownStepError, UnknownTypeError):
                unknown.append(dispatch)
        return routes, unknown


def lane_of(dispatch: Dispatch) -> str:
    """Return `type/step`, with ` later` for what is not due yet: the two may go different ways."""
    return f"{dispatch.type}/{dispatch.step}" + ("" if dispatch.due_at is None else " later")


def _route(step: Step, dispatch: Dispatch) -> str | Target:
    """Return the topic, or the queue of Cloud Tasks, that a dispatch goes to."""
    if step.transport == "tasks":
        return Target(step.topic, step.function, step.timeout)
    return step.topic if dispatch.due_at is None else Target(DELAYED, step.function, step.timeout)


def provider_uses(pipeline: Pipeline) -> dict[str, Any]:
    """Return which step (`type/step`) uses which provider: parameters of statements that leave held rows alone."""
    uses = [(f"{step.type}/{step.name}", provider) for step in pipeline.steps for provider in step.providers]
    return {"lanes": [lane for lane, _ in uses], "providers": [provider for _, provider in uses]}
