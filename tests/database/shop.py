"""The real pipeline.yaml on a test's database, with a real object server and mail sink around it."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

from pydantic import SecretStr

from local.mail import MailSink
from local.objects import ObjectServer
from local.payments import PaymentServer
from local.receiver import Receiver
from shared import envelope, operations
from shared.database import Database
from shared.identity import Options, Request
from shared.invoicing.announce import announce_invoice
from shared.invoicing.collect import collect_payment
from shared.invoicing.generate import generate_report
from shared.invoicing.notify import notify_invoice, notify_report
from shared.invoicing.record import record_invoice
from shared.invoicing.render import render_invoice
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.providers.email import Email
from shared.providers.objects import ObjectStore
from shared.providers.payments import Payments, PaymentSettings
from shared.providers.settings import MailSettings, StorageSettings
from shared.providers.storage import Storage
from shared.providers.webhook import Webhook, WebhookSettings
from shared.publisher import Dispatch, Publisher
from shared.step_function import Delivery, Handler, StepFunction
from tests.database.kit import Kit

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # of the test's own receiver
_buckets = itertools.count()
PIPELINE = Path(__file__).parents[2] / "pipeline.yaml"
LINE = {"sku": "85123A", "description": "HEART", "quantity": 6, "unit_pence": 255}


class _Unpublished(Publisher):
    """Leaves every row to the test, which delivers the outbox itself."""

    def publish(self, topic: str, dispatches: Sequence[Dispatch], timeout: float = 0) -> None:
        """Do nothing."""


class Shop(Kit):
    """Operations of the two types, run step by step through the real step functions."""

    def __init__(self, database: Database, url: str, objects: ObjectServer, sink: MailSink) -> None:
        super().__init__(database, Pipeline.load(PIPELINE), url)
        bucket = f"documents-{next(_buckets)}"  # of this shop alone: tests use the same orders
        objects.add_bucket(bucket)
        storage = StorageSettings(artifacts_bucket=bucket, storage_emulator_host=objects.url)
        self.objects = ObjectStore(storage)
        self.sink = sink
        self.mail = MailSettings(
            smtp_url=SecretStr(sink.smtp_url), mail_from="billing@shop.example", sent_log_url=sink.sent_log_url
        )
        self.bank = PaymentServer()
        self.receiver = Receiver(SECRET)
        self.payments = Payments(
            PaymentSettings(
                payments_key=SecretStr("sk_test_local"),
                payments_url=f"http://127.0.0.1:{self.bank.start()}",
                payments_visibility=timedelta(milliseconds=1),
                payments_timeout=timedelta(seconds=2),
            )
        )
        url = f"http://127.0.0.1:{self.receiver.start()}/webhooks"
        self.webhook = Webhook(WebhookSettings(webhook_url=url, webhook_secret=SecretStr(SECRET)))
        self._outbox = Outbox(database, self.pipeline, _Unpublished("test-project"))

    @property
    def handlers(self) -> dict[str, Handler]:
        return {
            "invoice_record": record_invoice,
            "invoice_collect": partial(collect_payment, payments=self.payments),
            "invoice_render": partial(render_invoice, storage=Storage(self.objects)),
            "invoice_notify": partial(notify_invoice, objects=self.objects, email=Email(self.mail)),
            "invoice_announce": partial(announce_invoice, webhook=self.webhook),
            "report_generate": partial(generate_report, storage=Storage(self.objects)),
            "report_notify": partial(notify_report, objects=self.objects, email=Email(self.mail)),
        }

    def ask(
        self, kind: str, given: Mapping[str, Any], key: str | None = None, tenant: str = "shop"
    ) -> operations.Accepted:
        request = Request(kind, json.loads(json.dumps(given)), Options())
        return operations.accept(self.database, self.pipeline, tenant, key or f"k-{id(request)}", request)

    def invoice(self, order: str = "536365", key: str | None = None, tenant: str = "shop", **changes: Any) -> UUID:
        given = invoice_input(order) | changes
        return self.ask("invoice.generate", given, key or f"order-{order}", tenant).operation_id

    def report(self, account: str = "17850", key: str = "report-1", tenant: str = "shop") -> UUID:
        period = {"from": "2010-12-01", "to": "2010-12-31"}
        given = {"account": account, "period": period, "email": "reader@example.com"}
        return self.ask("report.generate", given, key, tenant).operation_id

    def run(self, operation_id: UUID, handler: Handler | None = None) -> Delivery:
        """Deliver the operation's one due step to its function, as Pub/Sub would; `handler` stands in for its own."""
        self.query(f"UPDATE steps SET available_at = now() WHERE operation_id = '{operation_id}' AND state = 'queued'")
        (due,) = self.dispatches(operation_id)
        return self.deliver(due, handler)

    def deliver(self, due: Dispatch, handler: Handler | None = None) -> Delivery:
        function = self.pipeline.step(due.type, due.step).function
        step = StepFunction(function, handler or self.handlers[function], self._outbox, self.pipeline)
        return step.deliver(push(due), {"content-type": "application/json"})

    def close(self) -> None:
        self.bank.stop()
        self.receiver.stop()
        super().close()

    def run_until(self, operation_id: UUID, step: str) -> None:
        """Run the steps before this one."""
        while [due.step for due in self.dispatches(operation_id)] != [step]:
            self.run(operation_id)

    def run_all(self, operation_id: UUID) -> list[Delivery]:
        """Run one step after the other until none is due."""
        deliveries = []
        while self.dispatches(operation_id):
            deliveries.append(self.run(operation_id))
        return deliveries


def invoice_input(order: str = "536365") -> dict[str, Any]:
    """Return a valid invoice of £15.30."""
    return {
        "order": order,
        "kind": "credit_note" if order.startswith("C") else "invoice",
        "customer": {"id": "17850", "name": "Geschenke Müller 17850", "email": "customer-17850@example.com"},
        "country": "Germany",
        "ordered_at": "2010-12-01T08:26:00+00:00",
        "currency": "GBP",
        "lines": [LINE],
    }


def push(due: Dispatch) -> bytes:
    """Return the body of the push that carries a dispatch."""
    data = envelope.encode(due.operation_id, due.type, due.step, due.dispatch)
    message = {"data": base64.b64encode(data).decode(), "messageId": "1", "publishTime": "2026-01-01T00:00:00Z"}
    subscription = "projects/test-project/subscriptions/test"
    return json.dumps({"message": message | {"attributes": {}}, "subscription": subscription}).encode()
