"""The step `render`: the recorded invoice becomes a PDF in Cloud Storage."""

from __future__ import annotations

from typing import Any

from shared.errors import PermanentError
from shared.invoicing import artifacts
from shared.invoicing.context import Result, StepContext
from shared.invoicing.invoice_pdf import invoice_pdf
from shared.providers.storage import Storage

NAME = "invoice.pdf"


class InvoiceMissingError(PermanentError):
    """The invoice of this operation is not recorded."""


def render_invoice(ctx: StepContext, storage: Storage) -> Result:
    """Draw the invoice as it is recorded and store it; raises InvoiceMissingError."""
    invoice = recorded_invoice(ctx)
    lines = ctx.database.run("lines_of_invoice", invoice_id=invoice.invoice_id)
    content, pages = invoice_pdf(invoice, lines)
    rows = artifacts.store(ctx, storage, [artifacts.Document(NAME, content, covers=1, pages=pages)])
    return artifacts.pdf_result(rows[NAME])


def recorded_invoice(ctx: StepContext) -> Any:
    """Return the row of the invoice that this operation issued; raises InvoiceMissingError."""
    rows = ctx.database.run("invoice_of_operation", operation_id=ctx.operation_id, tenant=ctx.tenant)
    if not rows:
        raise InvoiceMissingError
    return rows[0]
