"""A step whose first attempt waits until the test lets it go, and then ends as the input says."""

import time
from typing import Any

from shared.step_function import step_function
from tests.stack import faults


def wait(ctx: Any) -> dict[str, Any]:
    """Wait, then finish, fail, look whether the lease is lost, or write in the transaction that was open meanwhile."""
    then = ctx.input["then"]
    if ctx.attempt == 1:
        transaction = ctx.transaction() if then == "write" else None
        faults.flag(f"at-{ctx.key}").touch()
        if then == "stop":
            _until(lambda: ctx.stopping)
        faults.wait_for(faults.flag(f"go-{ctx.key}"))
        if then == "beat":
            _until(lambda: ctx.lost)
            faults.flag(f"lost-{ctx.key}").touch()
            ctx.check()
        if transaction is not None:
            transaction.run("read_effect", operation_id=ctx.operation_id, step=ctx.step, name="none")
        if then == "fail":
            raise ValueError
    return {"attempt": ctx.attempt}


def _until(condition: Any) -> None:
    until = time.monotonic() + faults.STALL
    while not condition() and time.monotonic() < until:
        time.sleep(0.02)


main = faults.function(step_function("waits", wait))
