"""The table of a document's many rows, with a head that repeats on every page, and the totals below it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from reportlab.platypus import Flowable, KeepTogether, LongTable, Spacer

from shared.invoicing.pdf import (
    BAND,
    BOLD,
    FONT,
    INK,
    LEADING,
    QUIET,
    RULE,
    SIZE,
    WIDTH,
    fitting_size,
    plain_table,
    wrapped,
)  # fmt: skip

_PADDING = 3.0  # points on each side of a cell


@dataclass(frozen=True, slots=True)
class Column:
    """A column's title, width in points, and whether it holds amounts (right-aligned, never broken)."""

    title: str
    width: float
    amount: bool = False


def listing(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> list[Flowable]:
    """Return the table of all rows.

    Texts are broken to their column; when an amount is too wide for its own, all rows are set smaller
    instead, as a broken amount could be read as another.
    """
    size = min(
        [
            SIZE,
            *(_size(column, [row[i] for row in rows]) for i, column in enumerate(columns) if column.amount),
        ]
    )
    cells = [[_cell(column, text, size) for column, text in zip(columns, row, strict=True)] for row in rows]
    head = [column.title for column in columns]
    widths = [column.width for column in columns]
    table = LongTable([head, *cells], colWidths=widths, repeatRows=1, style=_style(columns, size), hAlign="LEFT")
    return [table]


def totals(rows: Sequence[tuple[str, str]]) -> list[Flowable]:
    """Return the totals below the listing, the last one in bold, kept together on one page."""
    cells = [["", label, amount] for label, amount in rows]
    size = fitting_size([amount for _, amount in rows], 0.3 * WIDTH, BOLD)
    style = [
        ("ALIGN", (2, 0), (2, -1), "RIGHT"),
        ("RIGHTPADDING", (2, 0), (2, -1), _PADDING),
        ("TEXTCOLOR", (1, 0), (1, -2), QUIET),
        ("FONT", (1, -1), (2, -1), BOLD, size, LEADING + 2),
        ("LINEABOVE", (1, -1), (2, -1), 0.8, INK),
        ("TOPPADDING", (1, -1), (2, -1), 5),
    ]
    return [
        Spacer(0, 8),
        KeepTogether([plain_table(cells, [0.45 * WIDTH, 0.24 * WIDTH, 0.31 * WIDTH], style)]),
    ]


def _size(column: Column, texts: Sequence[str]) -> float:
    return fitting_size(texts, column.width - 2 * _PADDING)


def _cell(column: Column, text: str, size: float) -> str:
    return text if column.amount else wrapped(text, column.width - 2 * _PADDING, FONT, size)


def _style(columns: Sequence[Column], size: float) -> list[tuple[Any, ...]]:
    return [
        ("FONT", (0, 0), (-1, -1), FONT, size, LEADING),
        ("TEXTCOLOR", (0, 0), (-1, -1), INK),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), _PADDING),
        ("RIGHTPADDING", (0, 0), (-1, -1), _PADDING),
        ("TOPPADDING", (0, 0), (-1, -1), 2),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 2.5),
        ("LINEBELOW", (0, 0), (-1, -1), 0.3, RULE),
        ("FONT", (0, 0), (-1, 0), BOLD, 7.5, LEADING),
        ("BACKGROUND", (0, 0), (-1, 0), BAND),
        ("LINEBELOW", (0, 0), (-1, 0), 0.8, INK),
        *(("ALIGN", (i, 0), (i, -1), "RIGHT") for i, column in enumerate(columns) if column.amount),
    ]
