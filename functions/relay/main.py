"""relay: every minute, publishes each outbox row that is due and not yet claimed."""

from typing import Any

from shared import relay
from shared.wiring import Surroundings, internal_function


def tick(around: Surroundings, _body: bytes, _headers: dict[str, str]) -> dict[str, Any]:
    """Run one tick and answer what it did."""
    return vars(relay.run_once(around.outbox))


main = internal_function(tick)
