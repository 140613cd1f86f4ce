"""storm_step: writes one row in its settling transaction, so that a second run would show."""

from typing import Any

from shared.step_function import step_function


def write(ctx: Any) -> dict[str, Any]:
    """Return how often this operation has run before: always none."""
    return {"attempt": ctx.attempt}


main = step_function("storm_step", write)
