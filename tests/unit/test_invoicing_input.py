"""Inputs are read strictly; what is wrong is named, never shown."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.addresses import is_email
from shared.errors import InvalidInputError
from shared.invoicing.document import MAX_LINES, InvoiceInput, document_number, pounds
from shared.invoicing.fields import read
from shared.invoicing.report import ReportInput

EXAMPLES = Path(__file__).parents[2] / "examples"
INVOICE = json.loads((EXAMPLES / "invoice.generate.json").read_text())["input"]
REPORT = json.loads((EXAMPLES / "report.generate.json").read_text())["input"]
SECRET = "Secret-Canary"


def changed(base: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Set (or, with `...`, remove) the value at a dotted path in a copy."""
    result = copy.deepcopy(base)
    *parents, last = [int(part) if part.isdecimal() else part for part in path.split(".")]
    place: Any = result
    for part in parents:
        place = place[part]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return result


def problem(model: type[Any], data: Any) -> str:
    with pytest.raises(InvalidInputError) as caught:
        read(model, data)
    return str(caught.value)


def test_the_examples_are_valid() -> None:
    assert read(InvoiceInput, INVOICE).total_pence == 13_912
    assert read(ReportInput, REPORT).account == "17850"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("order", ...), ("order", ""), ("order", 536365), ("order", "a b"), ("order", "1\n"), ("order", "é"),
        ("order", "x" * 65), ("order", None), ("kind", "refund"), ("kind", ["invoice"]),
        ("customer", "17850"), ("customer", None), ("customer.id", ...), ("customer.name", " "),
        ("customer.name", "a\r\nBcc: b@example.com"), ("customer.name", "a\u2028b"), ("customer.name", "\u202egnp"),
        ("customer.name", "x" * 201), ("customer.email", "a@b"), ("customer.email", "a@example.com\n"),
        ("customer.email", "a@example.com,b@example.com"), ("customer.email", "a <a@example.com>"),
        ("customer.email", '"a b"@example.com'), ("customer.email", "a@[127.0.0.1]"),
        ("customer.email", "ä@example.com"), ("customer.email", f"{'x' * 65}@example.com"),
        ("country", ""), ("country", "x" * 65), ("country", "\ud800"),
        ("ordered_at", "2010-12-01T08:26:00"), ("ordered_at", "2010-12-01"), ("ordered_at", 1_291_191_960),
        ("ordered_at", "2010-02-30T08:26:00Z"), ("ordered_at", "0001-01-01T00:00:00+14:00"),
        ("ordered_at", "2010-12-01T08:26:60Z"), ("ordered_at", "20101201T082600Z"),
        ("ordered_at", "2010-12-01T08:26:00+25:00"),
        ("currency", "EUR"), ("currency", "gbp"), ("lines", []), ("lines", {}), ("lines", None),
        ("lines.0", "x"), ("lines.0.sku", ""), ("lines.0.sku", "x" * 65), ("lines.0.description", "a\0b"),
        ("lines.0.description", None), ("lines.0.description", "x" * 501), ("lines.0.quantity", 0),
        ("lines.0.quantity", -1), ("lines.0.quantity", 1.5), ("lines.0.quantity", "6"), ("lines.0.quantity", True),
        ("lines.0.quantity", 1_000_001), ("lines.0.quantity", 10**30), ("lines.0.unit_pence", -1),
        ("lines.0.unit_pence", 2.55), ("lines.0.unit_pence", 10**9 + 1), ("lines.0.total_pence", 1),
    ],
)  # fmt: skip
def test_an_invalid_field_is_named(path: str, value: Any) -> None:
    assert f"input.{path}:" in problem(InvoiceInput, changed(INVOICE, path, value))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("account", ...), ("account", ""), ("account", 17850), ("email", "x"), ("period", None),
        ("period.from", "2010-12"), ("period.from", ...), ("period.to", "2010-12-32"), ("period.to", 20101231),
        ("period.to", "2010-12-31T00:00:00Z"), ("period.last", "2010-12-31"), ("format", "pdf"),
    ],
)  # fmt: skip
def test_an_invalid_field_of_a_report_is_named(path: str, value: Any) -> None:
    assert f"input.{path}:" in problem(ReportInput, changed(REPORT, path, value))


def test_a_period_must_not_end_before_it_starts() -> None:
    backwards = changed(REPORT, "period", {"from": "2010-12-02", "to": "2010-12-01"})
    assert problem(ReportInput, backwards) == "input.period: must not end before it starts"
    read(ReportInput, changed(REPORT, "period", {"from": "2010-12-01", "to": "2010-12-01"}))


@pytest.mark.parametrize("data", [None, [], "text", 1, {}])
def test_an_input_that_is_no_object_is_told(data: Any) -> None:
    assert problem(InvoiceInput, data).startswith("input")


def test_a_total_of_zero_or_beyond_exact_integers_is_refused() -> None:
    line = INVOICE["lines"][0]
    free = changed(INVOICE, "lines", [line | {"unit_pence": 0}])
    assert "must be more than zero" in problem(InvoiceInput, free)
    huge = changed(INVOICE, "lines", [line | {"quantity": 10**6, "unit_pence": 10**9}] * 10)
    assert "at most 2^53 - 1 pence" in problem(InvoiceInput, huge)


def test_the_number_of_lines_is_bounded() -> None:
    read(InvoiceInput, changed(INVOICE, "lines", INVOICE["lines"][:1] * MAX_LINES))
    assert "input.lines:" in problem(InvoiceInput, changed(INVOICE, "lines", INVOICE["lines"][:1] * (MAX_LINES + 1)))


def test_a_problem_shows_no_value_and_no_invented_field_name() -> None:
    paths = ("order", "kind", "customer.name", "customer.email", "country", "ordered_at", "currency", "lines.0.sku")
    for path in paths:
        assert SECRET not in problem(InvoiceInput, changed(INVOICE, path, f"{SECRET}\n"))
    assert SECRET not in problem(InvoiceInput, INVOICE | {SECRET: 1})
    assert SECRET not in problem(InvoiceInput, changed(INVOICE, "lines.0.quantity", SECRET))


def test_at_most_five_problems_are_told() -> None:
    text = problem(InvoiceInput, {str(n): n for n in range(20)})
    assert text.count(";") == 5
    assert text.endswith("; and 22 more")


@given(st.text(max_size=80))
def test_an_accepted_address_cannot_break_out_of_a_header(text: str) -> None:
    if is_email(text):
        assert text.isascii()
        assert text.isprintable()
        assert not set(text) & set(' ,;:<>()[]\\"')
        assert text.count("@") == 1


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=8))
def test_any_other_value_is_refused_in_our_own_words(value: Any) -> None:
    for field in ("lines", "customer", "ordered_at", "period"):
        with pytest.raises(InvalidInputError):
            read(InvoiceInput, INVOICE | {field: value})


@pytest.mark.parametrize(
    ("pence", "text"),
    [(0, "0.00"), (5, "0.05"), (100, "1.00"), (123_456_789, "1,234,567.89"), (-250, "-2.50"), (-5, "-0.05"),
     (2**53 - 1, "90,071,992,547,409.91")],
)  # fmt: skip
def test_pence_are_written_exactly(pence: int, text: str) -> None:
    assert pounds(pence) == text


def test_numbers_of_both_series_are_told_apart_and_may_outgrow_their_zeros() -> None:
    assert document_number("invoice", 123) == "INV-000123"
    assert document_number("credit_note", 1_234_567) == "CRN-1234567"
