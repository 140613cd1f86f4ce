"""The step `generate`: what was invoiced to an account in a period, as CSV and PDF in Cloud Storage."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC
from typing import Any

from shared.errors import PermanentError
from shared.invoicing import artifacts
from shared.invoicing.context import Result, StepContext
from shared.invoicing.fields import read
from shared.invoicing.report import MAX_DOCUMENTS, ReportInput, report_csv, report_pdf
from shared.providers.storage import Storage

CSV, PDF = "report.csv", "report.pdf"


class PeriodTooLongError(PermanentError):
    """The period holds more documents than one report takes; ask for a shorter one."""


def generate_report(ctx: StepContext, storage: Storage) -> Result:
    """Make both documents from one reading of the recorded invoices, and store them.

    A report is a snapshot of what was recorded when it was asked for, so every attempt makes the same. An account
    without documents in the
    period gets an empty report ("documents": 0), which is a success: the absence is the answer.
    Raises InvalidInputError and PeriodTooLongError.
    """
    report = read(ReportInput, ctx.input)
    invoices = _invoices(ctx, report)
    content, pages = report_pdf(ctx.tenant, report, invoices, ctx.accepted_at.astimezone(UTC).date())
    documents = [
        artifacts.Document(CSV, report_csv(invoices), covers=len(invoices)),
        artifacts.Document(PDF, content, covers=len(invoices), pages=pages),
    ]
    return _result(artifacts.store(ctx, storage, documents))


def _invoices(ctx: StepContext, report: ReportInput) -> Sequence[Any]:
    rows = ctx.database.run(
        "invoices_of_account",
        tenant=ctx.tenant,
        account=report.account,
        first_day=report.period.first,
        last_day=report.period.last,
        asked_at=ctx.accepted_at,
        at_most=MAX_DOCUMENTS + 1,
    )
    if len(rows) > MAX_DOCUMENTS:
        raise PeriodTooLongError
    return rows


def _result(rows: dict[str, Any]) -> Result:
    return {
        "documents": rows[CSV].documents,
        "csv": {"object": rows[CSV].object, "sha256": rows[CSV].sha256},
        "pdf": artifacts.pdf_result(rows[PDF]),
    }
