"""The step `collect`: the invoice is paid, once."""

from __future__ import annotations

from shared.invoicing.context import Result, StepContext
from shared.invoicing.document import document_number
from shared.invoicing.render import recorded_invoice
from shared.providers.payments import Payments

PAYMENT_METHOD = "pm_card_visa"  # a customer's own saved method in a real shop; Stripe's test card here


def collect_payment(ctx: StepContext, payments: Payments) -> Result:
    """Collect what the recorded invoice asks for; a credit note asks for nothing, and its refund is a person's."""
    invoice = recorded_invoice(ctx)
    if invoice.kind == "credit_note":
        return {"collected_pence": 0}
    request = {"amount": invoice.total_pence, "currency": "gbp", "payment_method": PAYMENT_METHOD,
               "description": document_number(invoice.kind, invoice.number)}  # fmt: skip
    paid = ctx.effect("payment", payments, request)
    return {"collected_pence": paid["amount"], "payment": paid["id"]}
