"""The vertical line: a process dies at every point of an effect, at four providers, and each shows one effect.

What is expected is read from the table in docs/effects.md, so that it cannot drift; the table that was observed is
printed at the end of the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from local.objects import ObjectServer
from shared.publisher import Dispatch
from tests.effects.attempt import ACK, AFTER, ANSWER, BEFORE, Attempt, Death, Place
from tests.effects.gate import Hold
from tests.effects.kit import EffectsKit
from tests.effects.stands import STANDS, Stand
from tests.effects.table import OBSERVED, documented

ROUNDS = 3  # of recovery: a lease that expired, an absence that was no proof yet, one more lookup of the unresolved

Kill = Callable[[Place, Dispatch, Stand], None]


def by_itself(when: str, what: str) -> Kill:
    def kill(place: Place, due: Dispatch, _: Stand) -> None:
        Attempt(place, due, Death(when, what)).died()

    return kill


def during_the_call(hold: Hold, *, arrives: bool) -> Kill:
    def kill(place: Place, due: Dispatch, stand: Stand) -> None:
        stand.gate.hold(hold)
        attempt = Attempt(place, due)
        stand.gate.wait_until_held()
        attempt.kill()
        stand.gate.release() if arrives else stand.gate.lose()

    return kill


POINTS: dict[str, Kill] = {
    "before it is intended": by_itself(BEFORE, "intend_effect"),
    "after it is intended": by_itself(AFTER, "intend_effect"),
    "after the permit, before the call": by_itself(AFTER, "permit_send"),
    "during the call; the request is lost": during_the_call(Hold.REQUEST, arrives=False),
    "during the call; the provider commits later": during_the_call(Hold.REQUEST, arrives=True),
    "after the provider commits": during_the_call(Hold.ANSWER, arrives=False),
    "after the answer": by_itself(AFTER, ANSWER),
    "after it is confirmed": by_itself(AFTER, "confirm_effect"),
    "after the step is settled": by_itself(AFTER, "settle_succeeded"),
    "after the acknowledgement": by_itself(AFTER, ACK),
}
SETTLED = {"after the step is settled", "after the acknowledgement"}


@pytest.mark.parametrize("provider", STANDS)
@pytest.mark.parametrize("point", POINTS)
def test_one_effect_wherever_the_process_dies(
    point: str,
    provider: str,
    kit: EffectsKit,
    objects: ObjectServer,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    with STANDS[provider](objects, tmp_path / "mail") as stand:
        place = Place(kit.url, kit.path, stand.provider, stand.environment)
        operation_id = kit.accept().operation_id
        message = kit.due(operation_id)
        POINTS[point](place, message, stand)
        # No acknowledgement, so Pub/Sub delivers it again at once: the lease of the dead process refuses it.
        assert Attempt(place, message).outcome() == ("done" if point in SETTLED else "busy")
        recover(kit, place, operation_id)
        assert Attempt(place, message).outcome() == "done"  # and once more, much later
        observed = how_it_ended(kit, operation_id, stand.effects())
    record_property(OBSERVED, [point, provider, observed])
    kit.check_invariant()
    assert observed == documented()[point][provider]


def recover(kit: EffectsKit, place: Place, operation_id: UUID) -> None:
    """Let time pass, reconcile run and what is due be delivered, until the step rests."""
    for _ in range(ROUNDS):
        if kit.states(operation_id)["only"] == "succeeded":
            return
        kit.pass_time()
        kit.reconcile()
        Attempt(place, kit.due(operation_id)).outcome()


def how_it_ended(kit: EffectsKit, operation_id: UUID, effects: int) -> str:
    """Say how the step came to its end, in the words of the documentation; fail for anything but that end."""
    effect, state = kit.effect(operation_id), kit.states(operation_id)["only"]
    if state == "unresolved":
        assert effect["state"] == "unknown"
        assert effects <= 1
        assert effect["permits"] == 1  # nothing was sent blindly
        return "unresolved"
    assert state == "succeeded"
    assert effect["state"] == "confirmed"
    assert effects == 1
    if effect["evidence"] == "lookup":
        return "found by lookup"
    if effect["permits"] == 1:
        return "sent once"
    return "proved absent, sent again" if effect["lookups"] else "sent again, same key"


def test_the_documented_table_has_every_point_and_provider() -> None:
    table = documented()
    assert list(table) == list(POINTS)
    assert all(list(row) == list(STANDS) for row in table.values())
