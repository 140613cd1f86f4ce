"""The step after `record`: nothing but its completion."""

from typing import Any

from shared.step_function import step_function
from tests.stack import faults


def seal(ctx: Any) -> dict[str, Any]:
    """Return the number of the invoice."""
    return {"sealed": ctx.results["record"]["number"]}


main = faults.function(step_function("seal", seal))
