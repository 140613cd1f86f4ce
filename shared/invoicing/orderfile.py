"""Reads a shop's order file ("Online Retail" layout, CSV or gzipped CSV) into orders, row by row.

Nothing is judged here: a row that cannot be read is kept with its fault, for `orders.decide` to reject.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import TextIO
from zoneinfo import ZoneInfo

from shared.errors import PermanentError
from shared.invoicing.document import MAX_LINES

COLUMNS = (
    "InvoiceNo", "StockCode", "Description", "Quantity", "InvoiceDate", "UnitPrice", "CustomerID", "Country",
)  # fmt: skip
SHOP_ZONE = ZoneInfo("Europe/London")  # the file's times are naive; the shop is in the United Kingdom
_LONGEST_LINE = 16_384  # characters; a longer line arrives in pieces, none of which can be read
_NUMBER = re.compile(r"[+-]?\d{1,12}(\.\d{0,12})?([eE][+-]?\d{1,2})?", re.ASCII)


class OrderFileError(PermanentError):
    """The file is not an order file."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of an order; `pence` is None for a price that is not a whole number of pence."""

    sku: str
    description: str
    quantity: int
    price: Decimal
    ordered_at: datetime
    customer: str
    country: str

    @property
    def pence(self) -> int | None:
        """The unit price in pence, exact."""
        scaled = self.price.scaleb(2)
        return int(scaled) if scaled == scaled.to_integral_value() else None


@dataclass(slots=True)
class Order:
    """All rows of one order number, in the order of the file; `faults` names the rows that cannot be read."""

    number: str
    rows: list[Row] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    lines: int = 0

    def add(self, row: Row | str) -> None:
        """Add a row or the fault of one; beyond MAX_LINES they are only counted: memory is bounded."""
        self.lines += 1
        if isinstance(row, str):
            self.faults = [*self.faults, row][:5]
        elif len(self.rows) <= MAX_LINES:
            self.rows.append(row)


def read_orders(paths: Iterable[Path]) -> Iterator[Order]:
    """Yield the orders of the files, each complete, in the order of their last rows.

    Every file is read twice: first to count the rows of each order, then to yield an order as soon as it is
    complete. So an order whose rows lie apart, or in two files, is never taken for two, and memory holds the
    open orders and one count for each order number. A file that is named twice is read once.
    Raises OrderFileError for a file without the columns; OSError when it cannot be read.
    """
    files = list(dict.fromkeys(path.resolve() for path in paths))
    left = Counter(number for path in files for number, _, _ in _records(path))
    open_orders: dict[str, Order] = {}
    for path in files:
        for number, place, record in _records(path):
            order = open_orders.setdefault(number, Order(number))
            order.add(_row(record, place) if isinstance(record, dict) else f"{place}: {record}")
            left[number] -= 1
            if not left[number]:
                yield open_orders.pop(number)


def _records(path: Path) -> Iterator[tuple[str, str, dict[str, str] | str]]:
    """Yield (order number, place, columns by name or what is wrong) for each line.

    Each line is parsed by itself, as no field of this layout holds a line break: a stray quote spoils its own
    line, not everything up to the next one.
    """
    with _open(path) as file:
        header = _cells(file.readline(_LONGEST_LINE)) or []
        missing = [column for column in COLUMNS if column not in header]
        if missing:
            raise OrderFileError(f"the file has no column {', '.join(missing)}")
        at = header.index("InvoiceNo")
        for line_number, line in enumerate(iter(lambda: file.readline(_LONGEST_LINE), ""), start=2):
            if line.strip():
                cells = _cells(line)
                number = (cells if cells and len(cells) > at else [*line.split(","), ""])[at if cells else 0]
                yield number.strip(' "\r\n'), f"{path.name} line {line_number}", _columns(header, cells)


def _open(path: Path) -> TextIO:
    """Open a file as text; bytes that are not UTF-8 become lone surrogates, which the row's check finds."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="\n")
    return path.open(encoding="utf-8-sig", errors="surrogateescape", newline="\n")


def _cells(line: str) -> list[str] | None:
    """Split one line, or return None when its quotes do not match."""
    try:
        return next(csv.reader([line], strict=True))
    except (csv.Error, StopIteration):
        return None


def _columns(header: list[str], cells: list[str] | None) -> dict[str, str] | str:
    if cells is None:
        return "unbalanced quotes"
    if len(cells) != len(header):
        return f"{len(cells)} columns instead of {len(header)}"
    return {name: cell.strip() for name, cell in zip(header, cells, strict=True)}


def _row(record: dict[str, str], place: str) -> Row | str:
    """Read the columns, or say which one cannot be read (never with its value)."""
    column = ""
    try:
        for column in COLUMNS:
            record[column].encode()
        column = "Quantity"
        quantity = _whole(record[column])
        column = "UnitPrice"
        price = _number(record[column])
        column = "InvoiceDate"
        ordered_at = datetime.fromisoformat(record[column])
        ordered_at = ordered_at.replace(tzinfo=SHOP_ZONE) if ordered_at.tzinfo is None else ordered_at
        column = "CustomerID"
        customer = str(_whole(record[column])) if record[column] else ""
    except (ValueError, DecimalException):
        return f"{place}: {column}"
    return Row(record["StockCode"], record["Description"], quantity, price, ordered_at, customer, record["Country"])


def _number(text: str) -> Decimal:
    if not _NUMBER.fullmatch(text):
        raise ValueError("not a number")
    return Decimal(text)


def _whole(text: str) -> int:
    number = _number(text)
    if number != number.to_integral_value():
        raise ValueError("not a whole number")
    return int(number)
