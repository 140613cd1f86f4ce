"""What orders become: exact sums on the real data, and every kind of dirt that a file may hold."""

from __future__ import annotations

import csv
import gzip
import json
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from pathlib import Path

import pytest

from shared.invoicing.document import MAX_LINES, InvoiceInput
from shared.invoicing.fields import read
from shared.invoicing.orderfile import COLUMNS, OrderFileError, read_orders
from shared.invoicing.orders import Classified, Operation, Reason, Rejection, classify, decide
from shared.invoicing.selection import choose, report_operations

ROOT = Path(__file__).parents[2]
FULL = ROOT.parent / "shared" / "data" / "online-retail" / "orders-2010-12.csv.gz"
EXCERPT = ROOT / "examples" / "orders-excerpt.csv"

HEADER = ",".join(COLUMNS)
GOOD = "536365,85123A,HEART,6,2010-12-01 08:26:00,2.55,17850.0,United Kingdom"


def outcomes(tmp_path: Path, *lines: str | bytes, header: str = HEADER) -> list[Operation | Rejection]:
    path = tmp_path / "orders.csv"
    path.write_bytes(b"\n".join(line.encode() if isinstance(line, str) else line for line in (header, *lines)))
    return [decide(order) for order in read_orders([path])]


def reason(tmp_path: Path, *lines: str | bytes) -> Reason:
    (outcome,) = outcomes(tmp_path, *lines)
    assert isinstance(outcome, Rejection), outcome
    return outcome.reason


def operation(tmp_path: Path, *lines: str) -> Operation:
    (outcome,) = outcomes(tmp_path, *lines)
    assert isinstance(outcome, Operation), outcome
    return outcome


def finished(paths: Iterable[Path]) -> tuple[Classified, list[Operation]]:
    classified = classify(read_orders(paths))
    return classified, list(classified.operations)


def totals(operations: Iterable[Operation]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for each in operations:
        sums[each.body["input"]["kind"]] += each.total_pence
    return sums


@pytest.mark.skipif(not FULL.exists(), reason="the whole file lies beside the repository only where it is built")
def test_the_real_month_adds_up_exactly() -> None:
    classified, operations = finished([FULL])
    assert (classified.orders, classified.lines) == (2_025, 42_481)
    expected = {
        "invoice": 1_400, "credit_note": 308, Reason.UNKNOWN_CUSTOMER: 177, Reason.ZERO_TOTAL: 140,
    }  # fmt: skip
    assert classified.outcomes == expected
    assert classified.outcome_lines.total() == 42_481
    assert len(operations) + len(classified.rejections) == 2_025
    assert totals(operations) == {"invoice": 57_271_389, "credit_note": 1_810_987}


def test_the_excerpt_adds_up_exactly() -> None:
    classified, operations = finished([EXCERPT])
    assert (classified.orders, classified.lines) == (267, 1_225)
    assert classified.outcomes.total() == 267
    assert classified.outcome_lines.total() == 1_225
    assert totals(operations) == {"invoice": 8_760_509, "credit_note": 292_580}


@pytest.mark.parametrize("path", [EXCERPT, FULL])
def test_sums_agree_with_an_independent_count(path: Path) -> None:
    """The sums above, computed again by other means: decimals over the raw rows."""
    if not path.exists():
        pytest.skip("the whole file lies beside the repository only where it is built")
    expected: Counter[str] = Counter()
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for row in csv.DictReader(file):
            if row["CustomerID"]:
                kind = "credit_note" if row["InvoiceNo"].startswith("C") else "invoice"
                expected[kind] += int(abs(int(row["Quantity"])) * Decimal(row["UnitPrice"]) * 100)
    _, operations = finished([path])
    assert totals(operations) == expected


def test_every_body_is_a_valid_input_and_every_key_is_its_own() -> None:
    _, operations = finished([EXCERPT])
    for each in operations:
        assert read(InvoiceInput, each.body["input"]).total_pence == each.total_pence
    assert len({each.key for each in operations}) == len(operations)


def test_the_example_is_what_the_order_becomes() -> None:
    _, operations = finished([EXCERPT])
    example = json.loads((ROOT / "examples" / "invoice.generate.json").read_text())
    assert next(each for each in operations if each.key == "order-536365").body == example


def test_a_return_becomes_a_credit_note_with_positive_amounts(tmp_path: Path) -> None:
    credit = operation(tmp_path, "C536379,D,Discount,-2,2010-12-01 09:41:00,27.5,14527.0,United Kingdom")
    body = credit.body["input"]
    assert (body["kind"], body["order"], credit.key) == ("credit_note", "C536379", "order-C536379")
    assert (body["lines"][0]["quantity"], body["lines"][0]["unit_pence"], credit.total_pence) == (2, 2750, 5500)


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        ("2010-12-01 08:26:00", "2010-12-01T08:26:00+00:00"),
        ("2011-06-01 00:10:00", "2011-06-01T00:10:00+01:00"),
        ("2011-10-30 01:30:00", "2011-10-30T01:30:00+01:00"),
    ],
)
def test_times_are_london_times(tmp_path: Path, clock: str, expected: str) -> None:
    body = operation(tmp_path, GOOD.replace("2010-12-01 08:26:00", clock)).body
    assert body["input"]["ordered_at"] == expected


@pytest.mark.parametrize(
    ("price", "pence"),
    [("2.55", 255), ("0.1", 10), ("1.15", 115), ("8.0", 800), ("38970.0", 3_897_000), ("4.350", 435), ("1e1", 1000)],
)
def test_prices_become_exact_pence(tmp_path: Path, price: str, pence: int) -> None:
    body = operation(tmp_path, GOOD.replace("2.55", price)).body
    assert body["input"]["lines"][0]["unit_pence"] == pence


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (GOOD.replace("17850.0", ""), Reason.UNKNOWN_CUSTOMER),
        (GOOD.replace("2.55", "0.0"), Reason.ZERO_TOTAL),
        (GOOD.replace("2.55", "0.0").replace("17850.0", "").replace(",6,", ",-6,"), Reason.ZERO_TOTAL),
        (GOOD.replace("536365", "A563186"), Reason.BAD_DEBT_ADJUSTMENT),
        (GOOD.replace("536365", "X536365"), Reason.UNKNOWN_SERIES),
        (GOOD.replace("536365", "C"), Reason.UNKNOWN_SERIES),
        (GOOD.replace("536365", "５３６"), Reason.OUT_OF_RANGE),
        (GOOD.replace("536365", "C536365"), Reason.WRONG_SIGN),
        (GOOD.replace(",6,", ",-6,"), Reason.WRONG_SIGN),
        (GOOD.replace(",6,", ",0,"), Reason.WRONG_SIGN),
        (GOOD.replace("2.55", "-11062.06"), Reason.NEGATIVE_PRICE),
        (GOOD.replace("2.55", "0.001"), Reason.FRACTION_OF_A_PENNY),
        (GOOD.replace("2.55", "2.5500000000000003"), Reason.UNREADABLE_ROW),
        (GOOD.replace(",6,", ",2000000,"), Reason.OUT_OF_RANGE),
        (GOOD.replace("85123A", ""), Reason.OUT_OF_RANGE),
        (GOOD.replace("HEART", "x" * 501), Reason.OUT_OF_RANGE),
        (GOOD.replace("HEART", "nul\0"), Reason.OUT_OF_RANGE),
        (GOOD.replace(",6,", ",six,"), Reason.UNREADABLE_ROW),
        (GOOD.replace(",6,", ",6.5,"), Reason.UNREADABLE_ROW),
        (GOOD.replace(",6,", ",,"), Reason.UNREADABLE_ROW),
        (GOOD.replace("2.55", "1_0"), Reason.UNREADABLE_ROW),
        (GOOD.replace("2.55", "٢"), Reason.UNREADABLE_ROW),
        (GOOD.replace("2.55", "NaN"), Reason.UNREADABLE_ROW),
        (GOOD.replace("2.55", "Infinity"), Reason.UNREADABLE_ROW),
        (GOOD.replace("2010-12-01 08:26:00", "2010-13-01 08:26:00"), Reason.UNREADABLE_ROW),
        (GOOD.replace("17850.0", "17850.5"), Reason.UNREADABLE_ROW),
        (GOOD.replace("17850.0", "a@b"), Reason.UNREADABLE_ROW),
        (GOOD.replace("HEART", "a,b"), Reason.UNREADABLE_ROW),
        (GOOD.replace("HEART", '"open'), Reason.UNREADABLE_ROW),
        (GOOD.encode().replace(b"HEART", b"caf\xe9"), Reason.UNREADABLE_ROW),
        (GOOD.rpartition(",")[0], Reason.UNREADABLE_ROW),
        (GOOD.replace("536365", ""), Reason.UNREADABLE_ROW),
        (GOOD.replace("HEART", "x" * 20_000), Reason.UNREADABLE_ROW),
    ],
)  # fmt: skip
def test_an_order_that_becomes_no_document_says_why(tmp_path: Path, line: str | bytes, expected: Reason) -> None:
    found = {o.reason for o in outcomes(tmp_path, line) if isinstance(o, Rejection)}
    assert found == {expected}


def test_a_stray_quote_spoils_its_own_order_only(tmp_path: Path) -> None:
    lines = [GOOD.replace("536365", str(number)) for number in range(1, 5)]
    lines[1] = lines[1].replace("HEART", '"HEART')
    found = outcomes(tmp_path, *lines)
    assert [isinstance(outcome, Operation) for outcome in found] == [True, False, True, True]
    rejected = found[1]
    assert isinstance(rejected, Rejection)
    assert (rejected.order, rejected.detail) == (
        "2",
        "a row cannot be read, so the order is not complete; orders.csv line 3: unbalanced quotes",
    )


def test_one_bad_row_rejects_the_whole_order(tmp_path: Path) -> None:
    (outcome,) = outcomes(tmp_path, GOOD, GOOD.replace(",6,", ",?,"), GOOD)
    assert isinstance(outcome, Rejection)
    assert (outcome.reason, outcome.lines) == (Reason.UNREADABLE_ROW, 3)


def test_a_rejection_shows_no_value(tmp_path: Path) -> None:
    for broken in (GOOD.replace(",6,", ",secret,"), GOOD.replace("HEART", "secret\x07")):
        (outcome,) = outcomes(tmp_path, broken)
        assert isinstance(outcome, Rejection)
        assert "secret" not in repr(outcome)


def test_rows_of_an_order_that_lie_apart_make_one_document(tmp_path: Path) -> None:
    found = outcomes(tmp_path, GOOD, GOOD.replace("536365", "536366"), GOOD.replace("2.55", "1.00"))
    assert [(o.key, o.total_pence) for o in found if isinstance(o, Operation)] == [
        ("order-536366", 1530),
        ("order-536365", 2130),
    ]


def test_an_order_in_two_files_makes_one_document_and_a_file_named_twice_counts_once(tmp_path: Path) -> None:
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text(f"{HEADER}\n{GOOD}\n")
    assert [order.lines for order in read_orders([*paths, paths[0]])] == [2]


def test_rows_of_one_order_for_two_customers_are_a_contradiction(tmp_path: Path) -> None:
    assert reason(tmp_path, GOOD, GOOD.replace("17850", "17851")) is Reason.CONTRADICTORY_ROWS


def test_an_order_over_the_minute_is_dated_by_its_first_row(tmp_path: Path) -> None:
    body = operation(tmp_path, GOOD.replace("08:26", "08:27"), GOOD).body
    assert body["input"]["ordered_at"] == "2010-12-01T08:26:00+00:00"


def test_a_free_line_stays_on_the_invoice_of_a_paid_order(tmp_path: Path) -> None:
    assert operation(tmp_path, GOOD, GOOD.replace("2.55", "0.0")).lines == 2


def test_an_endless_order_is_rejected_without_being_held(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_text("\n".join([HEADER, *[GOOD] * (MAX_LINES + 500)]))
    (order,) = read_orders([path])
    assert (order.lines, len(order.rows)) == (MAX_LINES + 500, MAX_LINES + 1)
    outcome = decide(order)
    assert isinstance(outcome, Rejection)
    assert (outcome.reason, outcome.lines) == (Reason.OUT_OF_RANGE, MAX_LINES + 500)


@pytest.mark.parametrize("header", ["", "InvoiceNo,StockCode", '"InvoiceNo', HEADER.replace("Country", "Land")])
def test_a_file_that_is_no_order_file_is_refused(tmp_path: Path, header: str) -> None:
    with pytest.raises(OrderFileError, match="has no column"):
        outcomes(tmp_path, GOOD, header=header)


def test_a_byte_order_mark_windows_line_ends_and_blank_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{HEADER}\r\n\r\n{GOOD}\r\n".encode())
    (order,) = read_orders([path])
    assert isinstance(decide(order), Operation)


def test_columns_may_come_in_another_order_with_more_beside_them(tmp_path: Path) -> None:
    header = "Extra," + ",".join(reversed(COLUMNS))
    line = "x," + ",".join(reversed(GOOD.split(",")))
    (outcome,) = outcomes(tmp_path, line, header=header)
    assert isinstance(outcome, Operation)


def test_the_choice_is_deterministic_and_varied() -> None:
    _, operations = finished([EXCERPT])
    chosen = choose(operations, 200)
    assert chosen == choose(operations, 200)
    assert len({each.key for each in chosen}) == 200
    kinds = Counter(each.body["input"]["kind"] for each in chosen)
    assert kinds["credit_note"] >= 25
    assert max(each.lines for each in chosen) == max(each.lines for each in operations)
    assert any(not json.dumps(each.body, ensure_ascii=False).isascii() for each in chosen)
    with pytest.raises(ValueError, match="but the orders give 253"):
        choose(operations, 254)


def test_a_report_is_asked_for_each_customer_and_month_with_several_documents(tmp_path: Path) -> None:
    path = tmp_path / "orders.csv"
    january = GOOD.replace("2010-12-01", "2011-01-31")
    path.write_text("\n".join([HEADER, GOOD, GOOD.replace("536365", "2"), january.replace("536365", "3")]))
    (report,) = report_operations(classify(read_orders([path])).operations)
    assert report["key"] == "report-17850-2010-12"
    assert report["body"] == json.loads((ROOT / "examples" / "report.generate.json").read_text())
