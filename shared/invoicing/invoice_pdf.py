"""The PDF of an invoice or credit note."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from reportlab.lib.units import mm

from shared.invoicing.document import TITLES, document_number, pounds
from shared.invoicing.listing import Column, listing, totals
from shared.invoicing.pdf import WIDTH, build, heading, pairs

COLUMNS = (
    Column("#", 11 * mm, amount=True),
    Column("Code", 26 * mm),
    Column("Description", WIDTH - 103 * mm),
    Column("Quantity", 18 * mm, amount=True),
    Column("Unit £", 22 * mm, amount=True),
    Column("Amount £", 26 * mm, amount=True),
)


def invoice_pdf(invoice: Any, lines: Sequence[Any]) -> tuple[bytes, int]:
    """Draw a recorded invoice or credit note; return the PDF and its number of pages.

    `invoice` is a row of the query invoice_of_operation and `lines` are the rows of lines_of_invoice. The
    date of issue is the day, in UTC, on which the operation was accepted. The same rows give the same bytes.
    """
    number = document_number(invoice.kind, invoice.number)
    title = TITLES[invoice.kind]
    order = "Order" if invoice.kind == "invoice" else "Return"
    story = [
        *heading(title, number, invoice.tenant),
        *pairs(
            [
                ("Customer", invoice.customer_name),
                ("Account", invoice.customer_id),
                ("Country", invoice.country),
            ],
            [
                ("Issued", invoice.accepted_at.astimezone(UTC).date().isoformat()),
                (order, invoice.order_reference),
                ("Dated", invoice.ordered_on.isoformat()),
            ],
        ),
        *listing(COLUMNS, [_row(line) for line in lines]),
        *totals(_totals(invoice)),
    ]
    return build(f"{title} {number}", invoice.tenant, f"{title} {number}", story)


def _row(line: Any) -> list[str]:
    return [
        str(line.position),
        line.sku,
        line.description,
        f"{line.quantity:,}",
        pounds(line.unit_pence),
        pounds(line.total_pence),
    ]


def _totals(invoice: Any) -> list[tuple[str, str]]:
    label = "Total due" if invoice.kind == "invoice" else "Total credited"
    return [("Lines", f"{invoice.line_count:,}"), (f"{label} (tax-free)", f"£ {pounds(invoice.total_pence)}")]
