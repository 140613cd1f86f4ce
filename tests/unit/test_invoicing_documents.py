"""The PDF and CSV that customers get: the same bytes for the same content, every line on it, nothing executable."""

from __future__ import annotations

import csv
import hashlib
import io
import os
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest
from pypdf import PdfReader

from shared.invoicing.fields import read
from shared.invoicing.invoice_pdf import invoice_pdf
from shared.invoicing.pdf import drawable, wrapped
from shared.invoicing.report import ReportInput, inert, report_csv, report_pdf

ROOT = Path(__file__).parents[2]
Invoice = namedtuple(
    "Invoice",
    "tenant kind number order_reference customer_id customer_name country ordered_on currency line_count total_pence"
    " accepted_at",
)
Line = namedtuple("Line", "position sku description quantity unit_pence total_pence")
REPORT = read(
    ReportInput,
    {"account": "17850", "period": {"from": "2010-12-01", "to": "2010-12-31"}, "email": "a@example.com"},
)


def document(lines: int = 3, **changes: Any) -> tuple[Any, list[Any]]:
    rows = [Line(n, f"SKU{n:04d}", f"Thing number {n}", n, 255, 255 * n) for n in range(1, lines + 1)]
    invoice = Invoice(
        "gift-shop", "invoice", 123, "536365", "17850", "Customer 17850", "United Kingdom", date(2010, 12, 1), "GBP",
        lines, sum(row.total_pence for row in rows), datetime(2026, 3, 1, 23, 30, tzinfo=UTC),
    )  # fmt: skip
    return invoice._replace(**changes), rows


def draw(lines: int = 3, **changes: Any) -> tuple[PdfReader, int]:
    content, pages = invoice_pdf(*document(lines, **changes))
    return PdfReader(io.BytesIO(content)), pages


def text_of(pdf: PdfReader) -> str:
    return "\n".join(page.extract_text() for page in pdf.pages)


def test_an_invoice_says_what_was_recorded() -> None:
    pdf, pages = draw()
    text = text_of(pdf)
    assert pages == len(pdf.pages) == 1
    for expected in ("Invoice", "INV-000123", "gift-shop", "Customer 17850", "17850", "536365", "2010-12-01",
                     "2026-03-01", "SKU0003", "Thing number 3", "7.65", "£ 15.30", "Page 1 of 1"):  # fmt: skip
        assert expected in text
    assert pdf.metadata is not None
    assert (pdf.metadata.title, pdf.metadata.author) == ("Invoice INV-000123", "gift-shop")


def test_a_credit_note_says_so() -> None:
    text = text_of(draw(kind="credit_note")[0])
    assert "Credit note" in text
    assert "CRN-000123" in text
    assert "Total credited" in text
    assert "Total due" not in text


def test_a_long_order_has_every_line_once_under_a_head_on_every_page() -> None:
    pdf, pages = draw(675)
    assert pages == len(pdf.pages) > 10
    texts = [page.extract_text() for page in pdf.pages]
    for number, text in enumerate(texts, start=1):
        assert f"Page {number} of {pages}" in text
        assert text.count("Description") == (1 if "SKU" in text else 0)
    whole = "\n".join(texts)
    assert [whole.count(f"SKU{n:04d}") for n in range(1, 676)] == [1] * 675


@pytest.mark.parametrize("lines", [1, 33, 34, 35, 36, 37, 38, 39, 40])
def test_the_total_stands_beside_its_label_at_every_page_break(lines: int) -> None:
    texts = [page.extract_text() for page in draw(lines)[0].pages]
    assert [("Total due" in text) == ("£ " in text) for text in texts] == [True] * len(texts)
    assert sum("Total due" in text for text in texts) == 1


def test_the_same_invoice_gives_the_same_bytes() -> None:
    first = invoice_pdf(*document(100))[0]
    invoice_pdf(*document(3, customer_name="Łódź Prezenty 1"))
    assert invoice_pdf(*document(100))[0] == first


def test_the_same_invoice_gives_the_same_bytes_in_every_process() -> None:
    program = (
        "import hashlib; from shared.invoicing.invoice_pdf import invoice_pdf;"
        "from tests.unit.test_invoicing_documents import document;"
        "print(hashlib.sha256(invoice_pdf(*document(40))[0]).hexdigest())"
    )
    here = hashlib.sha256(invoice_pdf(*document(40))[0]).hexdigest()
    for seed, zone in (("1", "UTC"), ("2", "Asia/Tokyo")):
        environment = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone}
        run = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, check=True
        )
        assert run.stdout.decode().strip() == here


def test_threads_draw_without_disturbing_each_other() -> None:
    expected = {lines: invoice_pdf(*document(lines))[0] for lines in (5, 60)}
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda lines: (lines, invoice_pdf(*document(lines))[0]), [5, 60] * 8))
    assert all(content == expected[lines] for lines, content in drawn)


def test_text_in_other_scripts_is_drawn_as_far_as_the_font_goes() -> None:
    text = text_of(draw(customer_name="Geschenke Müller & Söhne", country="Łódź 日本")[0])
    assert "Geschenke Müller & Söhne" in text
    assert "Łódz ??" in text


def test_markup_is_text() -> None:
    text = text_of(draw(customer_name="<b>A & B</b> <font size=99>")[0])
    assert "<b>A & B</b> <font size=99>" in text


def test_texts_without_spaces_are_broken_to_their_column() -> None:
    invoice, rows = document(1)
    rows = [rows[0]._replace(sku="W" * 64, description="M" * 500)]
    pdf = PdfReader(io.BytesIO(invoice_pdf(invoice, rows)[0]))
    text = text_of(pdf)
    assert (text.count("W"), text.count("M")) == (64, 500)
    assert max(len(line) for line in wrapped("W" * 64, 60).splitlines()) < 10


def test_an_amount_of_any_size_stays_in_one_piece() -> None:
    invoice, rows = document(1)
    rows = [rows[0]._replace(quantity=9_007_199, unit_pence=10**9, total_pence=2**53 - 1)]
    text = text_of(PdfReader(io.BytesIO(invoice_pdf(invoice._replace(total_pence=2**53 - 1), rows)[0])))
    assert text.count("90,071,992,547,409.91") == 2


def test_characters_that_the_font_lacks_fall_back_to_base_letters() -> None:
    assert drawable("ź é 日 £\u0301") == "z é ? £?"


def entry(
    kind: str = "invoice", number: int = 1, pence: int = 1_000, order: str = "536365", country: str = "UK"
) -> Any:
    return Invoice("gift-shop", kind, number, order, "17850", "", country, date(2010, 12, 1), "GBP", 2, pence, None)


def test_a_report_lists_documents_with_a_running_balance() -> None:
    content = report_csv([entry(), entry("credit_note", 7, 1_250), entry(number=2, pence=123_456_789)])
    rows = list(csv.reader(io.StringIO(content.decode(), newline="")))
    assert rows[0] == ["number", "kind", "order", "ordered_on", "country", "lines", "currency", "total", "balance"]
    assert [row[0] for row in rows[1:]] == ["INV-000001", "CRN-000007", "INV-000002"]
    assert [row[7:] for row in rows[1:]] == [["10.00", "10.00"], ["-12.50", "-2.50"], ["1234567.89", "1234565.39"]]
    assert content.endswith(b"\r\n")


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\r=1", " =1", "\u00a0=1", "＝1+1", "=cmd|' /C calc'!A0"]
)
def test_a_cell_that_could_run_is_made_inert(text: str) -> None:
    assert inert(text) == f"'{text}"
    (_, row) = csv.reader(io.StringIO(report_csv([entry(country=text)]).decode(), newline=""))
    assert row[4] == f"'{text}"


@pytest.mark.parametrize("text", ["536365", "C536365", "United Kingdom", "a=b", "", "1-2"])
def test_an_ordinary_cell_is_left_alone(text: str) -> None:
    assert inert(text) == text


def test_a_report_as_pdf_has_its_totals() -> None:
    documents = [entry(), entry("credit_note", 7, 1_250)]
    content, pages = report_pdf("gift-shop", REPORT, documents, date(2026, 3, 1))
    text = text_of(PdfReader(io.BytesIO(content)))
    assert pages == 1
    for expected in ("Statement", "2010-12-01 to 2010-12-31", "17850", "CRN-000007", "£ 10.00", "£ -12.50", "£ -2.50"):
        assert expected in text
    assert report_pdf("gift-shop", REPORT, documents, date(2026, 3, 1))[0] == content


def test_a_report_about_nothing_says_so() -> None:
    assert report_csv([]).count(b"\n") == 1
    content, pages = report_pdf("gift-shop", REPORT, [], date(2026, 3, 1))
    text = text_of(PdfReader(io.BytesIO(content)))
    assert pages == 1
    assert "Nothing was invoiced or credited in this period." in text
    assert "£ 0.00" in text
