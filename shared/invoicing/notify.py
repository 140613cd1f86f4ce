"""The steps `notify`: the documents of an operation go to its customer by e-mail, once."""

from __future__ import annotations

from shared.invoicing import artifacts
from shared.invoicing.context import Result, StepContext
from shared.invoicing.document import TITLES, document_number, pounds
from shared.invoicing.fields import read
from shared.invoicing.render import recorded_invoice
from shared.invoicing.report import ReportInput
from shared.providers.email import Email
from shared.providers.message import Letter
from shared.providers.objects import ObjectStore

EFFECT = "email"


def notify_invoice(ctx: StepContext, objects: ObjectStore, email: Email) -> Result:
    """Send the invoice or credit note to the customer."""
    return _deliver(ctx, email, _invoice_letter(ctx, objects))


def notify_report(ctx: StepContext, objects: ObjectStore, email: Email) -> Result:
    """Send the report to the address in the request."""
    return _deliver(ctx, email, _report_letter(ctx, objects))


def _deliver(ctx: StepContext, email: Email, letter: Letter) -> Result:
    sent = ctx.effect(EFFECT, email, email.letter(letter, ctx.accepted_at))
    which = {"operation_id": ctx.operation_id, "step": ctx.step, "effect": EFFECT, "tenant": ctx.tenant}
    ctx.transaction().run("record_notification", **which, message_id=sent["message_id"])
    return sent


def _invoice_letter(ctx: StepContext, objects: ObjectStore) -> Letter:
    invoice = recorded_invoice(ctx)
    number = document_number(invoice.kind, invoice.number)
    title = TITLES[invoice.kind]
    text = (
        f"Dear {invoice.customer_name},\n\n"
        f"attached is {title.lower()} {number} for order {invoice.order_reference}"
        f" of {invoice.ordered_on.isoformat()}: £ {pounds(invoice.total_pence)}.\n\n{ctx.tenant}\n"
    )
    files = {f"{number}.pdf": artifacts.read(ctx, objects)["invoice.pdf"]}
    return Letter(invoice.customer_email, invoice.customer_name, f"{title} {number}", text, files)


def _report_letter(ctx: StepContext, objects: ObjectStore) -> Letter:
    report = read(ReportInput, ctx.input)
    period = f"{report.period.first.isoformat()} to {report.period.last.isoformat()}"
    text = f"Attached is the statement of account {report.account} for {period}.\n\n{ctx.tenant}\n"
    stem = f"statement-{report.account.replace('/', '-')}"
    stored = artifacts.read(ctx, objects)
    files = {name.replace("report", stem, 1): content for name, content in stored.items()}
    return Letter(report.email, "", f"Statement {period}", text, files)
