"""The business side on a real database: what each step leaves behind, and what a second attempt does."""

from __future__ import annotations

import hashlib
import io
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from local.mail import MailSink
from local.objects import ObjectServer
from shared.database import Database
from shared.database_errors import ConstraintError
from shared.invoicing.record import record_invoice
from tests.database.shop import LINE, Shop, invoice_input


@pytest.fixture(scope="module")
def object_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("objects")) as server:
        yield server


@pytest.fixture
def shop(database: Database, database_url: str, object_server: ObjectServer, tmp_path: Path) -> Iterator[Shop]:
    with MailSink(tmp_path / "mail") as sink:
        shop = Shop(database, database_url, object_server, sink)
        yield shop
        shop.check_invariant()
        shop.close()


class CrashError(Exception):
    """Stands for whatever stops an attempt."""


def numbers(shop: Shop, tenant: str = "shop", kind: str = "invoice") -> list[int]:
    rows = shop.query(f"SELECT number FROM invoices WHERE tenant = '{tenant}' AND kind = '{kind}' ORDER BY number")
    return [int(row[0]) for row in rows]


def test_an_invoice_goes_all_the_way(shop: Shop) -> None:
    operation = shop.invoice(lines=[LINE, LINE | {"quantity": 2, "unit_pence": 1}])
    recorded, collected, rendered, notified, announced = shop.run_all(operation)
    assert recorded.result["number"] == "INV-000001"
    assert (recorded.result["total_pence"], recorded.result["lines"]) == (1_532, 2)
    assert collected.result["collected_pence"] == 1_532
    assert [payment["amount"] for payment in shop.bank.ledger()] == [1_532]
    assert rendered.result["pages"] == 1
    (event,) = shop.receiver.effects().values()
    assert (event["type"], event["data"]["number"]) == ("invoice.generated", "INV-000001")
    assert announced.outcome == "succeeded"
    assert shop.operation_state(operation) == "succeeded"
    found = shop.sink.log.find(notified.result["message_id"])
    assert found is not None
    assert (found["received"], found["recipients"]) == (1, ["customer-17850@example.com"])
    assert found["attachments"] == [{"name": "INV-000001.pdf", "sha256": rendered.result["sha256"]}]
    assert shop.query("SELECT name, object, sha256, pages, documents FROM artifacts") == [
        ["invoice.pdf", rendered.result["object"], rendered.result["sha256"], 1, 1]
    ]
    assert shop.query("SELECT step, effect, message_id FROM notifications") == [
        ["notify", "email", notified.result["message_id"]]
    ]


def test_what_is_recorded_is_what_was_asked_for(shop: Shop) -> None:
    shop.run(shop.invoice(lines=[LINE, LINE | {"description": 'it\'s \\ "{a,b}" NULL £ 日', "unit_pence": 0}]))
    assert shop.query(
        "SELECT order_reference, customer_id, customer_name, customer_email, country, ordered_on::text, currency,"
        " total_pence, line_count FROM invoices"
    ) == [["536365", "17850", "Geschenke Müller 17850", "customer-17850@example.com", "Germany", "2010-12-01", "GBP",
           1_530, 2]]  # fmt: skip
    assert shop.query("SELECT position, sku, description, quantity, unit_pence, total_pence FROM invoice_lines"
                      " ORDER BY position") == [
        [1, "85123A", "HEART", 6, 255, 1_530],
        [2, "85123A", "it's \\ \"{a,b}\" NULL £ 日", 6, 0, 0],
    ]  # fmt: skip


def test_the_dates_are_the_databases_and_the_shops(shop: Shop) -> None:
    operation = shop.invoice(ordered_at="2011-06-01T00:10:00+01:00")
    shop.run(operation)
    assert shop.value("SELECT ordered_on::text FROM invoices") == "2011-06-01"
    assert shop.value(f"SELECT i.accepted_at = o.accepted_at FROM invoices i, operations o WHERE o.id = '{operation}'")


def test_series_are_of_a_tenant_and_kind(shop: Shop) -> None:
    results = [
        shop.run(shop.invoice(order, tenant=tenant)).result["number"]
        for tenant, order in [("shop", "1"), ("shop", "C2"), ("other", "1"), ("shop", "3"), ("shop", "C4")]
    ]
    assert results == ["INV-000001", "CRN-000001", "INV-000001", "INV-000002", "CRN-000002"]


def test_an_invalid_input_fails_the_step_and_takes_no_number(shop: Shop) -> None:
    operation = shop.invoice(currency="EUR")
    assert shop.run(operation).outcome == "failed"
    assert shop.value("SELECT error FROM steps WHERE step = 'record'") == "input.currency: input should be 'GBP'"
    assert shop.run(shop.invoice("2")).result["number"] == "INV-000001"


def test_an_order_is_invoiced_once_whatever_the_key(shop: Shop) -> None:
    shop.run(shop.invoice("1", key="first"))
    again = shop.invoice("1", key="second")
    assert shop.run(again).outcome == "failed"
    assert shop.query("SELECT error_kind, error FROM steps WHERE state = 'failed'") == [
        ["OrderAlreadyInvoicedError", "this order has been invoiced already, as INV-000001"]
    ]
    assert shop.run(shop.invoice("2")).result["number"] == "INV-000002"


def test_a6_the_same_operation_again_gets_its_own_invoice(shop: Shop) -> None:
    operation = shop.invoice()
    first = shop.run(operation).result
    rerun: list[Any] = []

    def twice(ctx: Any) -> Any:
        other = type("Earlier", (), {n: getattr(ctx, n) for n in ("tenant", "input", "accepted_at", "transaction")})
        other.operation_id = operation  # type: ignore[attr-defined]
        rerun.append(record_invoice(other))  # type: ignore[arg-type]
        raise CrashError

    shop.run(shop.invoice(key="another"), twice)
    assert rerun == [first]
    assert numbers(shop) == [1]


def test_a2_a_crash_before_the_commit_leaves_neither_invoice_nor_number(shop: Shop) -> None:
    operation = shop.invoice()

    def crash(ctx: Any) -> Any:
        record_invoice(ctx)
        raise CrashError

    assert shop.run(operation, crash).outcome == "queued"
    assert shop.query("SELECT 1 FROM invoices UNION ALL SELECT 1 FROM invoice_lines") == []
    assert shop.query("SELECT 1 FROM invoice_counters") == []
    assert shop.run(operation).result["number"] == "INV-000001"


def test_a1_fifty_deliveries_at_once_make_one_invoice(shop: Shop) -> None:
    operation = shop.invoice()
    (due,) = shop.dispatches(operation)
    with ThreadPoolExecutor(8) as pool:
        outcomes = Counter(d.outcome for d in pool.map(lambda _: shop.deliver(due), range(50)))
    assert outcomes["succeeded"] == 1
    assert numbers(shop) == [1]


def test_numbers_are_gapless_under_threads_that_roll_back_at_random(shop: Shop) -> None:
    chance = random.Random(7)
    lock = threading.Lock()

    def unsteady(ctx: Any) -> Any:
        with lock:
            fails = ctx.attempt < 3 and chance.random() < 0.4
        result = record_invoice(ctx)
        if fails:
            raise CrashError
        return result

    due = [shop.dispatches(shop.invoice(str(n), tenant=f"shop{n % 2}"))[0] for n in range(60)]
    failed = 0
    while due:
        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(lambda dispatch: shop.deliver(dispatch, unsteady).outcome, due))
        failed += outcomes.count("queued")
        shop.query("UPDATE steps SET available_at = now() WHERE step = 'record' AND state = 'queued'")
        due = [d for n in due for d in shop.dispatches(n.operation_id) if d.step == "record"]
    assert failed > 10
    for tenant in ("shop0", "shop1"):
        assert numbers(shop, tenant) == list(range(1, 31))
        assert shop.value(f"SELECT last_number FROM invoice_counters WHERE tenant = '{tenant}'") == 30


def test_two_operations_for_one_order_at_the_same_moment_make_one_invoice(shop: Shop) -> None:
    for number in range(8):
        pair = [shop.dispatches(shop.invoice(str(number), key=f"{number}-{n}"))[0] for n in range(2)]
        with ThreadPoolExecutor(2) as pool:
            outcomes = sorted(d.outcome for d in pool.map(shop.deliver, pair))
        assert outcomes in (["failed", "succeeded"], ["queued", "succeeded"])
    assert numbers(shop) == list(range(1, 9))
    for operation in [row[0] for row in shop.query("SELECT operation_id FROM outbox WHERE step = 'record'")]:
        assert shop.run(operation).outcome == "failed"
    assert numbers(shop) == list(range(1, 9))


@pytest.mark.parametrize(
    ("change", "constraint"),
    [
        ("UPDATE invoices SET total_pence = 0", "invoices_total_pence_check"),
        ("UPDATE invoices SET kind = 'refund'", "invoices_kind_check"),
        ("UPDATE invoices SET currency = 'EUR'", "invoices_currency_check"),
        ("UPDATE invoice_lines SET total_pence = total_pence + 1", "invoice_lines_total"),
        ("UPDATE invoice_lines SET quantity = -1", "invoice_lines_quantity_check"),
        ("DELETE FROM invoices", "invoice_lines_invoice_id_fkey"),
        ("UPDATE invoice_counters SET last_number = 0", "invoice_counters_last_number_check"),
    ],
)
def test_the_schema_refuses_what_cannot_be(shop: Shop, change: str, constraint: str) -> None:
    shop.run(shop.invoice())
    with pytest.raises(ConstraintError) as caught:
        shop.query(change)
    assert caught.value.constraint == constraint


def test_every_invoicing_table_and_column_says_what_it_is(shop: Shop) -> None:
    missing = shop.query("""
        SELECT c.relname, a.attname FROM pg_class AS c
        JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0
        WHERE c.relkind = 'r' AND NOT a.attisdropped
            AND c.relname IN ('invoices', 'invoice_lines', 'invoice_counters', 'artifacts', 'notifications')
            AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid) IS NULL)
    """)
    assert missing == []


def test_a8_a_crash_after_the_upload_ends_in_one_document(shop: Shop) -> None:
    operation = shop.invoice(lines=[LINE] * 80)
    shop.run_until(operation, "render")
    render = shop.handlers["invoice_render"]

    def crash(ctx: Any) -> Any:
        render(ctx)
        raise CrashError

    assert shop.run(operation, crash).outcome == "queued"
    assert shop.query("SELECT 1 FROM artifacts") == []
    rendered = shop.run(operation).result
    assert rendered["pages"] == 3
    bucket = shop.objects._bucket()
    assert [blob.name for blob in bucket.list_blobs(prefix=rendered["object"].rpartition("/")[0])] == [
        rendered["object"]
    ]
    content = bucket.blob(rendered["object"]).download_as_bytes()
    assert hashlib.sha256(content).hexdigest() == rendered["sha256"]
    assert "INV-000001" in PdfReader(io.BytesIO(content)).pages[0].extract_text()


def test_a8_a_crash_after_the_e_mail_ends_in_one_e_mail(shop: Shop) -> None:
    operation = shop.invoice()
    shop.run_until(operation, "notify")
    notify = shop.handlers["invoice_notify"]

    def crash(ctx: Any) -> Any:
        notify(ctx)
        raise CrashError

    assert shop.run(operation, crash).outcome == "queued"
    assert shop.query("SELECT 1 FROM notifications") == []
    identifier = shop.run(operation).result["message_id"]
    found = shop.sink.log.find(identifier)
    assert found is not None
    assert found["received"] == 1
    shop.run_all(operation)
    assert shop.operation_state(operation) == "succeeded"


def test_a_second_attempt_sends_what_the_first_could_not(shop: Shop) -> None:
    operation = shop.invoice()
    shop.run_until(operation, "notify")
    working = shop.mail
    shop.mail = working.model_copy(update={"smtp_url": type(working.smtp_url)("smtp://127.0.0.1:1")})
    assert shop.run(operation).outcome == "queued"
    shop.mail = working
    assert shop.run(operation).outcome == "succeeded"
    assert shop.sink.log.count() == 1


def test_a8_a_confirmed_e_mail_needs_no_sent_log_to_be_known(shop: Shop) -> None:
    operation = shop.invoice()
    shop.run_until(operation, "notify")
    notify = shop.handlers["invoice_notify"]

    def crash(ctx: Any) -> Any:
        notify(ctx)
        raise CrashError

    shop.run(operation, crash)
    shop.mail = shop.mail.model_copy(update={"sent_log_url": None})
    assert shop.run(operation).outcome == "succeeded"
    assert shop.sink.log.count() == 1


def test_a5_a_lost_answer_is_looked_up_and_without_a_log_unresolved(
    database: Database, database_url: str, object_server: ObjectServer, tmp_path: Path
) -> None:
    with MailSink(tmp_path / "lossy", fault=lambda *_: "drop") as sink:
        shop = Shop(database, database_url, object_server, sink)
        asked, unasked = shop.invoice("1"), shop.invoice("2")
        for operation in (asked, unasked):
            shop.run_until(operation, "notify")
        assert shop.run(asked).outcome == "queued"
        assert shop.run(asked).outcome == "succeeded"
        shop.mail = shop.mail.model_copy(update={"sent_log_url": None})
        assert shop.run(unasked).outcome == "queued"
        assert shop.run(unasked).outcome == "unresolved"
        assert [message["received"] for message in sink.log.messages(0, 10)] == [1, 1]
        shop.close()


def test_a_report_covers_the_account_the_period_and_the_tenant(shop: Shop) -> None:
    other = invoice_input()["customer"] | {"id": "99999"}
    for operation in (
        shop.invoice("1"),
        shop.invoice("C2"),
        shop.invoice("3", ordered_at="2010-12-31T23:59:59+00:00"),
        shop.invoice("4", ordered_at="2011-01-01T00:00:00+00:00"),
        shop.invoice("5", customer=other),
        shop.invoice("6", tenant="other"),
    ):
        shop.run(operation)
    report = shop.report()
    generated, notified = shop.run_all(report)
    assert generated.result["documents"] == 3
    stored = shop.objects._bucket().blob(generated.result["csv"]["object"]).download_as_bytes().decode()
    assert [line.split(",")[2] for line in stored.splitlines()[1:]] == ["1", "C2", "3"]
    assert stored.splitlines()[-1].endswith(",15.30,15.30")
    found = shop.sink.log.find(notified.result["message_id"])
    assert found is not None
    assert (found["received"], found["recipients"]) == (1, ["reader@example.com"])
    assert [(a["name"], a["sha256"]) for a in found["attachments"]] == [
        ("statement-17850.csv", generated.result["csv"]["sha256"]),
        ("statement-17850.pdf", generated.result["pdf"]["sha256"]),
    ]
    assert shop.value("SELECT count(*) FROM artifacts") == 2
    assert shop.value("SELECT count(*) FROM notifications") == 1


def test_a_report_about_nothing_is_a_report(shop: Shop) -> None:
    operation = shop.report()
    generated, _ = shop.run_all(operation)
    assert generated.result["documents"] == 0
    assert shop.operation_state(operation) == "succeeded"
    assert shop.sink.log.count() == 1


def test_a_period_with_too_many_documents_fails_clearly(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.invoicing.generate.MAX_DOCUMENTS", 1)
    shop.run(shop.invoice("1"))
    assert shop.run(shop.report(key="one")).outcome == "succeeded"
    shop.run(shop.invoice("2"))
    assert shop.run(shop.report(key="two")).outcome == "failed"
    assert shop.value("SELECT error_kind FROM steps WHERE state = 'failed'") == "PeriodTooLongError"


def test_a6_a_retry_after_more_was_recorded_makes_the_same_report(shop: Shop) -> None:
    shop.run(shop.invoice("1"))
    operation = shop.report()
    generate = shop.handlers["report_generate"]

    def crash(ctx: Any) -> Any:
        generate(ctx)
        raise CrashError

    assert shop.run(operation, crash).outcome == "queued"
    shop.run(shop.invoice("2"))
    generated, _ = shop.run_all(operation)
    assert generated.result["documents"] == 1
    (message,) = shop.sink.log.messages(0, 10)
    assert message["attachments"][0]["sha256"] == generated.result["csv"]["sha256"]


def test_case_49_a_canary_is_in_no_log_line_error_or_result(shop: Shop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    canary = "Canary-4711"
    customer = {"id": "17850", "name": canary, "email": f"{canary}@example.com"}
    good = shop.invoice("1", customer=customer, country=canary, lines=[LINE | {"description": canary}])
    shop.run_all(good)
    shop.run_all(shop.invoice("2", customer=customer | {"email": f"{canary} <x@example.com>"}, country=canary))
    shop.run_all(shop.invoice("1", key="again", customer=customer))
    stored = shop.query("SELECT row_to_json(s)::text FROM steps s UNION ALL SELECT row_to_json(a)::text FROM attempts a"
                        " UNION ALL SELECT row_to_json(n)::text FROM notifications n"
                        " UNION ALL SELECT row_to_json(x)::text FROM artifacts x")  # fmt: skip
    assert canary not in str(stored)
    ours = [record for record in caplog.records if record.name != "mail.log"]  # the sink's own, the other side
    assert canary not in "\n".join(caplog.handler.format(record) for record in ours)
