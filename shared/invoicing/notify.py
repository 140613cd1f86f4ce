"""The steps `notify`: the documents of an operation go to its customer by e-mail, once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shared.errors import Unresolved
from shared.invoicing import artifacts
from shared.invoicing.context import Result, StepContext
from shared.invoicing.document import TITLES, document_number, pounds
from shared.invoicing.fields import read
from shared.invoicing.mailserver import MailOutcomeUnknownError, send, was_sent
from shared.invoicing.message import Letter, Mail, compose, message_id
from shared.invoicing.render import recorded_invoice
from shared.invoicing.report import ReportInput

if TYPE_CHECKING:
    from shared.invoicing.settings import MailSettings
    from shared.invoicing.storage import ObjectStore

EFFECT = "email"


def notify_invoice(ctx: StepContext, objects: ObjectStore, mail: MailSettings) -> Result:
    """Send the invoice or credit note to the customer; see `deliver` for what a second attempt does."""
    return _recorded(ctx) or deliver(ctx, mail, _invoice_letter(ctx, objects))


def notify_report(ctx: StepContext, objects: ObjectStore, mail: MailSettings) -> Result:
    """Send the report to the address in the request; see `deliver` for what a second attempt does."""
    return _recorded(ctx) or deliver(ctx, mail, _report_letter(ctx, objects))


def deliver(ctx: StepContext, settings: MailSettings, letter: Letter) -> Result:
    """Send a letter and record it with the step; a letter that was sent before is only recorded.

    SMTP cannot tell a repeated message from a new one, so any attempt but the first asks the sent log for the
    Message-ID before it sends. Raises Unresolved when a message may have been sent and there is no sent log
    to ask, and what `send` and `was_sent` raise: both are safe to repeat, as the next attempt asks again.
    """
    identifier = message_id((ctx.tenant, ctx.type, ctx.key), ctx.step, EFFECT)
    if not _sent_before(ctx, settings, identifier):
        _send(settings, compose(letter, identifier, settings.mail_from, ctx.accepted_at))
    ctx.transaction().run("record_notification", **_which(ctx), message_id=identifier)
    return {"message_id": identifier}


def _sent_before(ctx: StepContext, settings: MailSettings, identifier: str) -> bool:
    if ctx.attempt == 1:
        return False
    if not settings.sent_log_url:
        raise Unresolved("an earlier attempt may have sent the e-mail, and no sent log is configured to ask")
    return was_sent(settings, identifier)


def _send(settings: MailSettings, mail: Mail) -> None:
    try:
        send(settings, mail)
    except MailOutcomeUnknownError as error:
        if settings.sent_log_url:
            raise
        raise Unresolved(f"{error}, and no sent log is configured to ask") from None


def _recorded(ctx: StepContext) -> Result | None:
    rows = ctx.database.run("notification_of_step", **_which(ctx))
    return {"message_id": rows[0].message_id} if rows else None


def _which(ctx: StepContext) -> dict[str, object]:
    return {"operation_id": ctx.operation_id, "step": ctx.step, "effect": EFFECT, "tenant": ctx.tenant}


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
