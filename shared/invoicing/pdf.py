"""The look that all documents share: fonts, page furniture, tables of many rows.

Everything drawn is plain text, never markup, so an input cannot reach the layout. The same content gives the
same bytes: no clock, no random id.
"""

from __future__ import annotations

import io
import threading
import unicodedata
from collections.abc import Sequence
from typing import Any

from reportlab.lib import colors
from reportlab.lib.pagesizes import A4
from reportlab.lib.units import mm
from reportlab.lib.utils import simpleSplit
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen.canvas import Canvas
from reportlab.platypus import Flowable, SimpleDocTemplate, Spacer, Table

FONT, BOLD = (
    "Vera",
    "VeraBd",
)  # Bitstream Vera, which reportlab ships; covers most of Latin-1 and Latin Extended-A
SIZE = 8.5  # points
LEADING = 11.0
INK = colors.HexColor("#1f2933")
QUIET = colors.HexColor("#6b7784")
RULE = colors.HexColor("#cbd2d9")
BAND = colors.HexColor("#f3f5f7")
MARGIN = 19 * mm
WIDTH = A4[0] - 2 * MARGIN
_FRAME_PADDING = 6  # points that reportlab adds inside the margins
_FONT_FILES = threading.Lock()  # reportlab reads glyphs through one file position a font, for all threads

for _name in (FONT, BOLD):
    pdfmetrics.registerFont(TTFont(_name, f"{_name}.ttf"))
_GLYPHS = pdfmetrics.getFont(FONT).face.charToGlyph


def drawable(text: str) -> str:
    """Return the text with characters that the font lacks replaced: by their base letter if any, else by "?".

    Only the drawing is affected; the database and the CSV keep the text as it came.
    """
    return "".join(c if ord(c) in _GLYPHS else _base_letter(c) for c in text)


def wrapped(text: str, width: float, font: str = FONT, size: float = SIZE) -> str:
    """Break a text into lines no wider than `width` points, inside words when need be."""
    lines: list[str] = []
    for line in simpleSplit(drawable(text), font, size, width):
        while pdfmetrics.stringWidth(line, font, size) > width and len(line) > 1:
            fits = max(_fitting(line, width, font, size), 1)
            lines.append(line[:fits])
            line = line[fits:]
        lines.append(line)
    return "\n".join(lines)


def fitting_size(texts: Sequence[str], width: float, font: str = FONT, size: float = SIZE) -> float:
    """Return the size, at most `size`, at which the widest of the texts fits into `width` points."""
    widest = max((pdfmetrics.stringWidth(text, font, size) for text in texts), default=0)
    return size if widest <= width else size * width / widest


def build(title: str, author: str, footer: str, story: list[Flowable]) -> tuple[bytes, int]:
    """Lay a story out on A4 pages numbered "n of m"; return the PDF and its number of pages."""
    target = io.BytesIO()
    pages: list[int] = []

    class _Canvas(NumberedCanvas):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, footer=drawable(footer), pages=pages, **options)

    document = SimpleDocTemplate(
        target, pagesize=A4, invariant=1, title=title, author=author, creator="Echoproof", lang="en-GB",
        leftMargin=MARGIN - _FRAME_PADDING, rightMargin=MARGIN - _FRAME_PADDING, topMargin=18 * mm,
        bottomMargin=20 * mm,
    )  # fmt: skip
    with _FONT_FILES:
        document.build(story, canvasmaker=_Canvas)
    return target.getvalue(), pages[0]


class NumberedCanvas(Canvas):  # type: ignore[misc]
    """Draws the footer of each page last, when the number of pages is known, and appends it to `pages`."""

    def __init__(self, *args: Any, footer: str, pages: list[int], **options: Any) -> None:
        super().__init__(*args, **options)
        self._footer = footer
        self._pages = pages
        self._states: list[dict[str, Any]] = []

    def showPage(self) -> None:  # noqa: N802 - overrides reportlab's method
        """Keep the page for later."""
        self._states.append(dict(self.__dict__))
        self._startPage()

    def save(self) -> None:
        """Draw the footers and write the document."""
        for number, state in enumerate(self._states, start=1):
            self.__dict__.update(state)
            self.setFont(FONT, 7)
            self.setFillColor(QUIET)
            self.drawString(MARGIN, 11 * mm, self._footer)
            self.drawRightString(A4[0] - MARGIN, 11 * mm, f"Page {number} of {len(self._states)}")
            super().showPage()
        self._pages.append(len(self._states))
        super().save()


def heading(title: str, subtitle: str, seller: str) -> list[Flowable]:
    """Return the head of the first page: what it is on the left, who sent it on the right."""
    cells = [[title, wrapped(seller, WIDTH * 0.35, BOLD, 11)], [wrapped(subtitle, WIDTH * 0.6), ""]]
    style = [
        ("FONT", (0, 0), (0, 0), BOLD, 20, 24),
        ("FONT", (1, 0), (1, 0), BOLD, 11, 14),
        ("ALIGN", (1, 0), (1, 0), "RIGHT"),
        ("TEXTCOLOR", (0, 1), (0, 1), QUIET),
        ("LINEBELOW", (0, 1), (-1, 1), 1.2, INK),
        ("BOTTOMPADDING", (0, 1), (-1, 1), 8),
    ]
    return [plain_table(cells, [WIDTH * 0.62, WIDTH * 0.38], style), Spacer(0, 6 * mm)]


def pairs(left: Sequence[tuple[str, str]], right: Sequence[tuple[str, str]]) -> list[Flowable]:
    """Return two columns of label and value."""
    label, value = 22 * mm, WIDTH / 2 - 24 * mm
    rows = max(len(left), len(right))
    cells = [[*_pair(left, i, value), *_pair(right, i, value)] for i in range(rows)]
    style = [("TEXTCOLOR", (c, 0), (c, -1), QUIET) for c in (0, 2)]
    return [plain_table(cells, [label, WIDTH / 2 - label] * 2, style), Spacer(0, 7 * mm)]


def plain_table(cells: list[list[str]], widths: list[float], style: list[tuple[Any, ...]]) -> Table:
    """Return a table without rules."""
    base = [
        ("FONT", (0, 0), (-1, -1), FONT, SIZE, LEADING),
        ("TEXTCOLOR", (0, 0), (-1, -1), INK),
        ("VALIGN", (0, 0), (-1, -1), "TOP"),
        ("LEFTPADDING", (0, 0), (-1, -1), 0),
        ("RIGHTPADDING", (0, 0), (-1, -1), 0),
        ("TOPPADDING", (0, 0), (-1, -1), 1.5),
        ("BOTTOMPADDING", (0, 0), (-1, -1), 1.5),
    ]
    return Table(cells, colWidths=widths, style=[*base, *style], hAlign="LEFT")


def _pair(items: Sequence[tuple[str, str]], index: int, width: float) -> list[str]:
    return [items[index][0], wrapped(items[index][1], width)] if index < len(items) else ["", ""]


def _base_letter(character: str) -> str:
    base = unicodedata.normalize("NFKD", character)[:1]
    return base if base and ord(base) in _GLYPHS else "?"


def _fitting(line: str, width: float, font: str, size: float) -> int:
    """Return how many leading characters fit into the width."""
    used = 0.0
    for count, character in enumerate(line):
        used += pdfmetrics.stringWidth(character, font, size)
        if used > width:
            return count
    return len(line)
