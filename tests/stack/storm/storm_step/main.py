"""storm_step: does nothing but say which attempt it was."""

from typing import Any

from shared.step_function import step_function


def tell(ctx: Any) -> dict[str, Any]:
    """Return the number of the attempt."""
    return {"attempt": ctx.attempt}


main = step_function("storm_step", tell)
