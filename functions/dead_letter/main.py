"""dead_letter: records what Pub/Sub gave up on, for review."""

from typing import Any

from shared import dead_letters
from shared.wiring import Surroundings, internal_function


def record(around: Surroundings, body: bytes, headers: dict[str, str]) -> dict[str, Any]:
    """Record one delivery of the dead-letter topic and answer what became of it."""
    return vars(dead_letters.record(around.database, body, headers))


main = internal_function(record)
