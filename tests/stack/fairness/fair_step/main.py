"""fair_step: does nothing, so that only the order of what starts is seen."""

from typing import Any

from shared.step_function import step_function


def nothing(_ctx: Any) -> None:
    """Return at once."""


main = step_function("fair_step", nothing)
