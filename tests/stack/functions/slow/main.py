"""A step that takes longer than its lease."""

import time
from typing import Any

from shared.step_function import step_function
from tests.stack import faults


def wait(ctx: Any) -> dict[str, Any]:
    """Work for the time that the input says, and count the run."""
    with faults.flag(f"runs-{ctx.key}").open("a") as runs:
        runs.write("run\n")
    time.sleep(ctx.input["seconds"])
    return {"attempt": ctx.attempt}


main = faults.function(step_function("slow", wait))
