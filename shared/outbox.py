"""The outbox: dispatches that nobody has claimed, published at once by their writer and for certain by the relay.

A row is leased to its writer for a minute when it is born. The writer's publish after its commit is a shortcut
that may fail without harm; `relay.run_once` is the guarantee. No row is ever removed here.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from shared.database import Database
from shared.errors import EchoproofError
from shared.pipeline import Pipeline, UnknownStepError, UnknownTypeError
from shared.publisher import Dispatch, InvalidMessageError, Publisher, PublishError

WRITER_LEASE = 60.0  # seconds that a row belongs to its writer: a publish takes 2 s at most, the relay runs each minute
WRITER_TIMEOUT = 2.0  # seconds for the shortcut: the caller waits for its answer meanwhile
RETURN_AFTER = 5.0  # seconds until the relay may take a row whose publish failed
REFUSAL_LIMIT = 3  # times that Pub/Sub may call a message invalid before its step needs a person
INCOMPATIBLE = "pipeline.yaml has no such step"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sent:
    """What became of leased rows: how many were published and how many not, and the steps that no publish reaches.

    `away` holds `type/step` of each step whose topic did not answer.
    """

    published: int
    failed: int
    away: frozenset[str]


class Outbox:
    """Publishing of outbox rows, for writers and for the relay."""

    def __init__(self, database: Database, pipeline: Pipeline, publisher: Publisher) -> None:
        self.database = database
        self.writer_lease = WRITER_LEASE
        self._pipeline = pipeline
        self._publisher = publisher

    def publish_at_once(self, dispatches: Sequence[Dispatch]) -> None:
        """Publish rows just committed; never raises: what fails is given to the relay."""
        topics, _ = self._by_topic([d for d in dispatches if d.due_at is None])  # the relay parks what has no topic
        for topic, group in topics.items():
            try:
                self._publisher.publish(topic, group, WRITER_TIMEOUT)
            except (PublishError, InvalidMessageError) as error:
                log.warning("published by the relay instead: %s", error)
                self._give_back(group, delay=0, counted=0)

    def publish_leased(self, dispatches: Sequence[Dispatch]) -> Sent:
        """Publish rows that the relay has leased and say what became of them.

        A message that Pub/Sub calls invalid is found by bisection, backed off and finally parked (its step is
        exhausted and shows in the review queue), and so is one whose step the pipeline does not have; the others
        go out.
        """
        topics, unknown = self._by_topic(dispatches)
        for dispatch in unknown:
            self._refuse(dispatch, "incompatible", INCOMPATIBLE)
        published, away = 0, set[str]()
        for topic, group in topics.items():
            try:
                published += self._publish_group(topic, group)
            except PublishError as error:
                log.warning("not published, tried again in %s s: %s", RETURN_AFTER, error)
                self._give_back(group, delay=RETURN_AFTER, counted=1)
                away |= {f"{dispatch.type}/{dispatch.step}" for dispatch in group}
        return Sent(published, len(dispatches) - published, frozenset(away))

    def _publish_group(self, topic: str, group: Sequence[Dispatch]) -> int:
        try:
            self._publisher.publish(topic, group)
        except InvalidMessageError as error:
            if len(group) == 1:
                self._refuse(group[0], "undeliverable", str(error))
                return 0
            half = len(group) // 2
            return self._publish_group(topic, group[:half]) + self._publish_group(topic, group[half:])
        return len(group)

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

    def _by_topic(self, dispatches: Iterable[Dispatch]) -> tuple[Mapping[str, list[Dispatch]], list[Dispatch]]:
        """Group dispatches by topic, and return apart those of steps that the pipeline does not have."""
        topics: dict[str, list[Dispatch]] = defaultdict(list)
        unknown = []
        for dispatch in dispatches:
            try:
                topics[self._pipeline.step(dispatch.type, dispatch.step).topic].append(dispatch)
            except (UnknownStepError, UnknownTypeError):
                unknown.append(dispatch)
        return topics, unknown
