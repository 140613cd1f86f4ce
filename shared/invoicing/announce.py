"""The step `announce`: the application is told that its invoice is done."""

from __future__ import annotations

from shared.invoicing.context import Result, StepContext
from shared.providers.webhook import Webhook


def announce_invoice(ctx: StepContext, webhook: Webhook) -> Result:
    """Tell the application, by ids and references only."""
    told = {"operation_id": str(ctx.operation_id), "key": ctx.key, "tenant": ctx.tenant, **ctx.results["record"]}
    event = {"type": "invoice.generated", "timestamp": ctx.accepted_at.isoformat(), "data": told}
    return ctx.effect("announcement", webhook, event)
