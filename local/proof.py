"""Proves what happened, from the database, the bucket and the mail server's log: never from HTTP answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client as StorageClient

from shared.database import Database


@dataclass(frozen=True)
class Check:
    """One claim: what was expected, what was found."""

    claim: str
    expected: int
    found: int

    @property
    def holds(self) -> bool:
        """Whether the claim is true."""
        return self.expected == self.found


@dataclass(frozen=True)
class World:
    """Where the effects are: the bucket, and the logs of the mail server, payment provider and webhook receiver."""

    objects_url: str
    bucket: str
    sent_log: str
    payments: str
    receiver: str


def prove(database: Database, world: World, tenant: str, keys: dict[str, set[str]]) -> list[Check]:
    """Check every submitted key (by operation type): one operation, one of each of its effects, nothing lost."""
    invoices = database.run("prove_invoices", tenant=tenant)
    reports = database.run("prove_reports", tenant=tenant)
    stored, mails = stored_objects(world.objects_url, world.bucket), received(world.sent_log)
    everything = [*invoices, *reports]
    wanted_objects = [row.object for row in invoices] + [name for row in reports for name in _names(row.artifact)]
    mail_ids = [row.message_id for row in everything]
    rest = database.run("prove_rest")[0]
    wanted = {kind: len(found) for kind, found in keys.items()}
    total = sum(wanted.values())
    submitted = set().union(*keys.values())
    once = sum(row.invoices == 1 for row in invoices)
    return [
        Check(
            "keys submitted = operations recorded",
            total,
            len({row.key for row in everything} & submitted),
        ),
        Check("no operation twice", total, len(everything)),
        Check("operations succeeded", total, sum(row.state == "succeeded" for row in everything)),
        Check("operations with exactly one invoice", wanted["invoice.generate"], once),
        Check("invoice numbers without a gap", *_series(database, tenant)),
        Check("documents named by results are stored", len(set(wanted_objects)), len(set(wanted_objects) & stored)),
        Check("no document that nobody names", 0, len(stored - set(wanted_objects))),
        Check("e-mails received exactly once", total, sum(mails[one] == 1 for one in mail_ids)),
        Check("no e-mail that nobody names", 0, len(set(mails) - set(mail_ids))),
        *_payments(database, world, tenant),
        *_webhooks(world, wanted["invoice.generate"]),
        Check("outbox rows left", 0, rest.outbox),
        Check("open dead letters", 0, rest.dead_letters),
        Check("operations without identity or steps", 0, rest.without_identity + rest.without_steps),
    ]


def _payments(database: Database, world: World, tenant: str) -> list[Check]:
    """Compare the invoices that ask for money with what the provider's own ledger says was paid."""
    due = {row.number: row.total_pence for row in database.run("prove_due", tenant=tenant)}
    paid = requests.get(f"{world.payments}/_control/ledger", timeout=10).json()
    keys = {payment["key"] for payment in paid}
    return [
        Check("invoices paid in the provider's ledger", len(due), len(paid)),
        Check("payments with a key of their own", len(paid), len(keys)),
        Check("pence paid", sum(due.values()), sum(payment["amount"] for payment in paid)),
    ]


def _webhooks(world: World, wanted: int) -> list[Check]:
    told = requests.get(f"{world.receiver}/_control/received", timeout=10).json()["effects"]
    operations = Counter(event["data"]["operation_id"] for event in told.values())
    once = sum(count == 1 for count in operations.values())
    return [Check("operations announced to the application once", wanted, once)]


def stored_objects(url: str, bucket: str) -> set[str]:
    """Return the name of every object in the bucket."""
    nobody = AnonymousCredentials()  # type: ignore[no-untyped-call]
    client = StorageClient(project="local", credentials=nobody, client_options={"api_endpoint": url})
    return {blob.name for blob in client.list_blobs(bucket)}


def received(sent_log: str) -> Counter[str]:
    """Return how often each Message-ID was received."""
    counts: Counter[str] = Counter()
    while True:
        page = requests.get(f"{sent_log}/messages", params={"start": str(len(counts))}, timeout=10).json()
        counts.update({message["id"]: message["received"] for message in page["messages"]})
        if len(counts) >= page["count"] or not page["messages"]:
            return counts


def _names(artifact: Any) -> Iterable[str]:
    """Return every object's name in a report's result."""
    if isinstance(artifact, dict):
        for name, value in artifact.items():
            if name == "object":
                yield value
            else:
                yield from _names(value)


def _series(database: Database, tenant: str) -> tuple[int, int]:
    rows = database.run("prove_series", tenant=tenant)
    return sum(row.highest for row in rows), sum(row.documents for row in rows)
