"""The step `record`: an order becomes an invoice or a credit note with the next number of its series."""

from __future__ import annotations

from typing import Any

from shared.errors import PermanentError
from shared.invoicing.context import Result, StepContext
from shared.invoicing.document import InvoiceInput, document_number
from shared.invoicing.fields import read


class OrderAlreadyInvoicedError(PermanentError):
    """The order has been invoiced already, by another operation."""


def record_invoice(ctx: StepContext) -> Result:
    """Write the invoice and its lines in the transaction that completes the step.

    Numbers are gapless for each tenant and kind: the counter's row lock is held until the step is settled,
    and a rollback gives the number back. An operation that has its invoice gets that one again. Totals are
    in pence, without tax.
    Raises InvalidInputError for a bad input and OrderAlreadyInvoicedError when another operation has invoiced
    (or credited) the same order: an order is billed once, whatever key asks for it.
    """
    invoice = read(InvoiceInput, ctx.input)
    row = ctx.transaction().run("record_invoice", **_parameters(ctx, invoice))[0]
    number = document_number(invoice.kind, row.number)
    if row.operation_id != ctx.operation_id:
        raise OrderAlreadyInvoicedError(f"this order has been invoiced already, as {number}")
    return {
        "invoice_id": str(row.invoice_id),
        "number": number,
        "total_pence": row.total_pence,
        "lines": row.line_count,
    }


def _parameters(ctx: StepContext, invoice: InvoiceInput) -> dict[str, Any]:
    """Spread an invoice over the parameters; the order's date is the one that the shop's clock showed."""
    return {
        "operation_id": ctx.operation_id,
        "tenant": ctx.tenant,
        "kind": invoice.kind,
        "order_reference": invoice.order,
        "customer_id": invoice.customer.id,
        "customer_name": invoice.customer.name,
        "customer_email": invoice.customer.email,
        "country": invoice.country,
        "ordered_at": invoice.ordered_at,
        "ordered_on": invoice.ordered_at.date(),
        "currency": invoice.currency,
        "accepted_at": ctx.accepted_at,
        "skus": [line.sku for line in invoice.lines],
        "descriptions": [line.description for line in invoice.lines],
        "quantities": [line.quantity for line in invoice.lines],
        "units_pence": [line.unit_pence for line in invoice.lines],
    }
