"""A step that pays once, in a process that dies, or is told to stop, where the key of the operation says."""

from typing import Any

from shared.providers.payments import Payments
from shared.step_function import step_function
from tests.stack import faults

provider = Payments.from_environment()


def pay(ctx: Any) -> dict[str, Any]:
    """Pay what the input says."""
    faults.meet(ctx, "before")
    request = {"amount": ctx.input["amount"], "currency": "gbp", "payment_method": "pm_card_visa"}
    paid: dict[str, Any] = ctx.effect("payment", provider, request)
    faults.meet(ctx, "after")
    return {"payment": paid["id"]}


main = faults.function(step_function("pays", pay))
