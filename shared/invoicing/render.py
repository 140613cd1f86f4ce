"""The step `render`: the recorded invoice becomes a PDF in Cloud Storage."""

from __future__ import annotations

from typing import Any

from shared.errors import PermanentError
from shared.invoicing import artifacts
from shared.invoicing.context import Result, StepContext
from shared.invoicing.invoice_pdf import invoice_pdf
from shared.invoicing.storage import ObjectStore

NAME = "invoice.pdf"


class InvoiceMissingError(PermanentError):
    """The invoice of this operation is not recorded."""


def render_invoice(ctx: StepContext, objects: ObjectStore) -> Result:
    """Draw the invoice as it is recorded and store it; a run that finds it recorded as stored returns that.

    An attempt that dies after the upload leaves an object that the next attempt meets under the same name
    with the same content, which is the success it wants. Raises InvoiceMissingError, and what ObjectStore.put
    raises.
    """
    earlier = artifacts.recorded(ctx)
    if NAME in earlier:
        return artifacts.pdf_result(earlier[NAME])
    invoice = recorded_invoice(ctx)
    lines = ctx.database.run("lines_of_invoice", invoice_id=invoice.invoice_id)
    content, pages = invoice_pdf(invoice, lines)
    documents = [artifacts.Document(NAME, content, pages)]
    stored = artifacts.store(ctx, objects, documents)
    return artifacts.pdf_result(artifacts.record(ctx, documents, stored, covers=1)[NAME])


def recorded_invoice(ctx: StepContext) -> Any:
    """Return the row of the invoice that this operation issued; raises InvoiceMissingError."""
    rows = ctx.database.run("invoice_of_operation", operation_id=ctx.operation_id, tenant=ctx.tenant)
    if not rows:
        raise InvoiceMissingError
    return rows[0]
