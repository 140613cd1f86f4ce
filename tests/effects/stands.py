"""The four providers, each with its own ledger of what really happened and a gate before it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from local.mail import MailSink
from local.objects import ObjectServer
from local.payments import PaymentServer
from local.receiver import Receiver
from tests.database.shop import SECRET
from tests.effects.gate import Gate, whole_http_request, whole_mail

_buckets = itertools.count()


@dataclass(frozen=True)
class Stand:
    """A provider that can be used: which, the environment of a process that uses it, and how to count its effects."""

    provider: str
    environment: dict[str, str]
    gate: Gate
    effects: Callable[[], int]


@contextlib.contextmanager
def payments(_: ObjectServer, __: Path) -> Iterator[Stand]:
    server = PaymentServer()
    gate = Gate(server.start(), whole_http_request)
    with contextlib.closing(gate):
        environment = {"PAYMENTS_KEY": "sk_test_local", "PAYMENTS_URL": f"http://127.0.0.1:{gate.port}"}
        yield Stand("payments", environment, gate, lambda: len(server.ledger()))
    server.stop()


@contextlib.contextmanager
def storage(objects: ObjectServer, _: Path) -> Iterator[Stand]:
    bucket = f"line-{next(_buckets)}"
    objects.add_bucket(bucket)
    gate = Gate(objects.port, whole_http_request)
    with contextlib.closing(gate):
        environment = {"ARTIFACTS_BUCKET": bucket, "STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{gate.port}"}
        yield Stand("storage", environment, gate, lambda: len(_listed(objects, bucket)))


def _listed(objects: ObjectServer, bucket: str) -> list[Any]:
    answer = requests.get(f"{objects.url}/storage/v1/b/{bucket}/o", timeout=5)
    listed: list[Any] = answer.json().get("items", [])
    return listed


@contextlib.contextmanager
def webhook(_: ObjectServer, __: Path) -> Iterator[Stand]:
    server = Receiver(SECRET)
    gate = Gate(server.start(), whole_http_request)
    with contextlib.closing(gate):
        environment = {"WEBHOOK_URL": f"http://127.0.0.1:{gate.port}/webhooks", "WEBHOOK_SECRET": SECRET}
        yield Stand("webhook", environment, gate, lambda: len(server.effects()))
    server.stop()


@contextlib.contextmanager
def email_with_sent_log(_: ObjectServer, folder: Path) -> Iterator[Stand]:
    with _mail(folder) as (sink, gate, environment):
        yield Stand("email", {**environment, "SENT_LOG_URL": sink.sent_log_url}, gate, sink.log.count)


@contextlib.contextmanager
def email_without(_: ObjectServer, folder: Path) -> Iterator[Stand]:
    with _mail(folder) as (sink, gate, environment):
        yield Stand("email", environment, gate, sink.log.count)


@contextlib.contextmanager
def _mail(folder: Path) -> Iterator[tuple[MailSink, Gate, dict[str, str]]]:
    with MailSink(folder) as sink, contextlib.closing(Gate(sink.smtp_port, whole_mail)) as gate:
        yield sink, gate, {"SMTP_URL": f"smtp://127.0.0.1:{gate.port}", "MAIL_FROM": "billing@shop.example"}


STANDS = {
    "payments": payments,
    "storage": storage,
    "webhook": webhook,
    "e-mail with a sent log": email_with_sent_log,
    "e-mail without": email_without,
}
