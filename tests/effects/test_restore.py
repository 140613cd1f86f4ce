"""After a restore to before a payment: the resubmitted operation meets its own payment, and is not paid twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from local.postgres import Postgres
from shared import recovery
from shared.database import Connection, Database, connector
from tests.effects.till import Till

KEY = "order-536365"


@contextmanager
def copied(postgres: Postgres, url: str, till: Till, folder: Path) -> Iterator[Till]:
    """Copy the till's database as it is now, and yield a till of the copy at the same payment provider."""
    source = url.rsplit("/", 1)[1]
    name = f"{source}_restored"
    till.database.close()  # PostgreSQL copies only a database that nobody uses; both connect again when they are used
    till.disconnect()
    admin = Connection(connector(postgres.url)())
    admin.execute(f"CREATE DATABASE {name} TEMPLATE {source}")
    till.connect()
    folder.mkdir()
    database = Database(connector(postgres.url_of(name)))
    restored = Till(database, postgres.url_of(name), folder, bank=till.bank)
    try:
        yield restored
    finally:
        restored.disconnect()
        database.close()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")
        admin.close()


@pytest.mark.parametrize("accepted", [False, True], ids=["copied before acceptance", "copied before payment"])
@pytest.mark.parametrize("fault", ["none", "drop_after_commit"])
def test_a_resubmitted_operation_meets_its_own_payment(
    till: Till, postgres: Postgres, database_url: str, tmp_path: Path, fault: str, *, accepted: bool
) -> None:
    first = till.accept(key=KEY).operation_id if accepted else None
    with copied(postgres, database_url, till, tmp_path / "restored") as restored:
        original = till.accept(key=KEY).operation_id
        till.next(fault)
        till.run(original)
        assert till.paid == 1

        recovery.begin(restored.database)
        resubmitted = restored.accept(key=KEY)
        assert resubmitted.new is not accepted
        assert (resubmitted.operation_id == original) == (first is not None)
        assert restored.run(resubmitted.operation_id) == "succeeded"
        effect = restored.effect(resubmitted.operation_id)
        assert effect["provider_key"] == till.wire[0][0]
        assert (effect["permits"], effect["lookups"], effect["evidence"]) == (0, 1, "lookup")
        till.check_wire(requests=1)
        assert recovery.end(restored.database)


def test_what_was_never_paid_is_paid_once_after_proof(
    till: Till, postgres: Postgres, database_url: str, tmp_path: Path
) -> None:
    with copied(postgres, database_url, till, tmp_path / "restored") as restored:
        recovery.begin(restored.database)
        operation_id = restored.accept(key=KEY).operation_id
        assert restored.run(operation_id) == "queued"  # absent, which is no proof: the payment may be on its way
        assert restored.wire == []
        restored.pass_time()
        assert restored.run(operation_id) == "succeeded"
        assert restored.effect(operation_id)["lookups"] == 2
        restored.check_wire(requests=1)


def test_without_recovery_mode_the_same_key_still_meets_the_payment_within_the_horizon(
    till: Till, postgres: Postgres, database_url: str, tmp_path: Path
) -> None:
    with copied(postgres, database_url, till, tmp_path / "restored") as restored, closing(restored.database):
        till.run(till.accept(key=KEY).operation_id)
        assert restored.run(restored.accept(key=KEY).operation_id) == "succeeded"
        till.check_wire(requests=2)
