"""What a `report.generate` input must be, and the CSV and PDF that are made from recorded documents."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from datetime import date
from typing import Annotated, Any

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import Flowable, Paragraph, Spacer

from shared.invoicing.document import TITLES, document_number, pounds
from shared.invoicing.fields import Day, Email, Reference, Strict
from shared.invoicing.listing import Column, listing, totals
from shared.invoicing.pdf import FONT, QUIET, SIZE, WIDTH, build, heading, pairs

MAX_DOCUMENTS = 5_000  # of one account in one period, drawn in about 3 s; for more, ask for shorter periods
CSV_COLUMNS = ("number", "kind", "order", "ordered_on", "country", "lines", "currency", "total", "balance")
COLUMNS = (
    Column("Date", 24 * mm),
    Column("Document", 30 * mm),
    Column("Kind", 30 * mm),
    Column("Order", WIDTH - 132 * mm),
    Column("Lines", 18 * mm, amount=True),
    Column("Amount £", 30 * mm, amount=True),
)
# What a spreadsheet may take for the start of a formula, in its plain and full-width forms; tab and carriage
# return are skipped by some readers, so that the next character counts (OWASP, CSV injection).
_FORMULA_STARTS = tuple("=+-@\t\r\n＝＋－＠")


class Period(Strict):
    """The days that a report covers, both included."""

    first: Annotated[Day, Field(alias="from")]
    last: Annotated[Day, Field(alias="to")]

    @model_validator(mode="after")
    def _in_order(self) -> Period:
        if self.last < self.first:
            raise PydanticCustomError("period", "must not end before it starts")
        return self


class ReportInput(Strict):
    """The input of `report.generate`."""

    account: Reference
    period: Period
    email: Email


def signed_pence(document: Any) -> int:
    """Return what a document adds to the account's balance: a credit note takes away."""
    total: int = document.total_pence
    return total if document.kind == "invoice" else -total


def report_csv(documents: Sequence[Any]) -> bytes:
    """Write one row a document: RFC 4180, UTF-8, amounts as plain decimals, credits negative.

    Text cells that a spreadsheet could run as a formula get an apostrophe in front. Without documents it is
    the header alone.
    """
    target = io.StringIO(newline="")
    writer = csv.writer(target)
    writer.writerow(CSV_COLUMNS)
    balance = 0
    for document in documents:
        balance += signed_pence(document)
        writer.writerow(_csv_row(document, balance))
    return target.getvalue().encode()


def _csv_row(document: Any, balance: int) -> list[str]:
    return [
        document_number(document.kind, document.number),
        document.kind,
        inert(document.order_reference),
        document.ordered_on.isoformat(),
        inert(document.country),
        str(document.line_count),
        document.currency,
        pounds(signed_pence(document)).replace(",", ""),
        pounds(balance).replace(",", ""),
    ]


def inert(text: str) -> str:
    """Return a text cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text.lstrip(" \u00a0").startswith(_FORMULA_STARTS) else text


def report_pdf(tenant: str, report: ReportInput, documents: Sequence[Any], made_on: date) -> tuple[bytes, int]:
    """Draw the report, also one without documents; return the PDF and its number of pages."""
    invoiced = sum(d.total_pence for d in documents if d.kind == "invoice")
    credited = sum(d.total_pence for d in documents if d.kind == "credit_note")
    period = f"{report.period.first.isoformat()} to {report.period.last.isoformat()}"
    story = [
        *heading("Statement", period, tenant),
        *pairs(
            [("Account", report.account), ("Documents", f"{len(documents):,}")],
            [("Requested", made_on.isoformat())],
        ),
        *(listing(COLUMNS, [_row(document) for document in documents]) if documents else _nothing()),
        *totals(
            [
                ("Invoiced", f"£ {pounds(invoiced)}"),
                ("Credited", f"£ {pounds(-credited)}"),
                ("Balance (tax-free)", f"£ {pounds(invoiced - credited)}"),
            ]
        ),
    ]
    return build(f"Statement {period}", tenant, f"Account {report.account} · {period}", story)


def _row(document: Any) -> list[str]:
    return [
        document.ordered_on.isoformat(),
        document_number(document.kind, document.number),
        TITLES[document.kind],
        document.order_reference,
        f"{document.line_count:,}",
        pounds(signed_pence(document)),
    ]


def _nothing() -> list[Flowable]:
    style = ParagraphStyle("nothing", fontName=FONT, fontSize=SIZE, textColor=QUIET)
    return [Paragraph("Nothing was invoiced or credited in this period.", style), Spacer(0, 4 * mm)]
