"""Decides what every order of the shop becomes: an invoice, a credit note, or a rejection with its reason.

The rules, and how many orders of the real data each one takes, are in docs/orders.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from shared.errors import InvalidInputError, sanitise
from shared.invoicing.document import InvoiceInput
from shared.invoicing.fields import read
from shared.invoicing.orderfile import Order, Row

# The shop's customers are numbers. The names are made up, some in other scripts on purpose; no mail ever
# reaches example.com (RFC 2606).
_NAMES = {
    "Austria": "Käufer {}", "Belgium": "Société Générale d’Achat {}", "Denmark": "Køber {}",
    "EIRE": "Custaiméir {}", "Finland": "Ostajaryhmä {}", "France": "Boutique Élégance {}",
    "Germany": "Geschenke Müller & Söhne {}", "Iceland": "Viðskiptavinur {}", "Norway": "Kjøper {}",
    "Poland": "Łódź Prezenty {}", "Portugal": "Comércio São João {}", "Spain": "Señora Núñez {}",
    "Sweden": "Köpare {}", "Switzerland": "Zürcher Lädeli {}",
}  # fmt: skip


class Reason(StrEnum):
    """Why an order becomes no document; the first that applies counts."""

    UNREADABLE_ROW = "unreadable_row"
    BAD_DEBT_ADJUSTMENT = "bad_debt_adjustment"
    UNKNOWN_SERIES = "unknown_series"
    CONTRADICTORY_ROWS = "contradictory_rows"
    ZERO_TOTAL = "zero_total"
    WRONG_SIGN = "wrong_sign"
    NEGATIVE_PRICE = "negative_price"
    FRACTION_OF_A_PENNY = "fraction_of_a_penny"
    UNKNOWN_CUSTOMER = "unknown_customer"
    OUT_OF_RANGE = "out_of_range"


DETAILS = {
    Reason.UNREADABLE_ROW: "a row cannot be read, so the order is not complete",
    Reason.BAD_DEBT_ADJUSTMENT: "an entry of the books (A…), not a sale",
    Reason.UNKNOWN_SERIES: "the number is neither an order's nor a return's (C…)",
    Reason.CONTRADICTORY_ROWS: "rows name different customers or countries",
    Reason.ZERO_TOTAL: "a movement of stock or a gift: nothing to bill",
    Reason.WRONG_SIGN: "a quantity is zero or goes against the order's kind",
    Reason.NEGATIVE_PRICE: "a price is below zero",
    Reason.FRACTION_OF_A_PENNY: "a price is not a whole number of pence; it is not rounded silently",
    Reason.UNKNOWN_CUSTOMER: "nobody to bill or to send it to",
    Reason.OUT_OF_RANGE: "a value is outside what an invoice can hold",
}


@dataclass(frozen=True, slots=True)
class Operation:
    """What to post to intake: the body and its Idempotency-Key."""

    key: str
    body: dict[str, Any]
    lines: int
    total_pence: int


@dataclass(frozen=True, slots=True)
class Rejection:
    """An order that becomes no document; `detail` holds no personal data."""

    order: str
    reason: Reason
    detail: str
    lines: int


@dataclass(slots=True)
class Classified:
    """A pass over orders: iterate over `operations`; the rejections and counts grow along.

    After the last operation: orders == sum(outcomes.values()) and lines == sum(outcome_lines.values()), keys
    "invoice", "credit_note" and the reasons. Memory holds the rejections only, never the operations.
    """

    source: Iterable[Order]
    rejections: list[Rejection] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    outcome_lines: Counter[str] = field(default_factory=Counter)
    orders: int = 0
    lines: int = 0

    @property
    def operations(self) -> Iterator[Operation]:
        """The operations, one by one, in the source's order; an iterator as the source gives them once."""
        for order in self.source:
            outcome = decide(order)
            name = outcome.reason if isinstance(outcome, Rejection) else outcome.body["input"]["kind"]
            self.orders += 1
            self.lines += order.lines
            self.outcomes[name] += 1
            self.outcome_lines[name] += outcome.lines
            if isinstance(outcome, Rejection):
                self.rejections.append(outcome)
            else:
                yield outcome


def classify(orders: Iterable[Order]) -> Classified:
    """Decide every order, streaming; see Classified."""
    return Classified(orders)


def decide(order: Order) -> Operation | Rejection:
    """Decide what one order becomes; the same order always becomes the same."""
    kind = "credit_note" if order.number.startswith("C") else "invoice"
    reason = next(_reasons(order, kind), None)
    if reason:
        detail = "; ".join([DETAILS[reason], *order.faults])
        return Rejection(sanitise(order.number, 64), reason, sanitise(detail), order.lines)
    body = {"type": "invoice.generate", "input": _input(order, kind)}
    try:
        invoice = read(InvoiceInput, body["input"])
    except InvalidInputError as error:
        detail = f"{DETAILS[Reason.OUT_OF_RANGE]}: {error}"
        return Rejection(sanitise(order.number, 64), Reason.OUT_OF_RANGE, detail, order.lines)
    return Operation(f"order-{order.number}", body, order.lines, invoice.total_pence)


def _reasons(order: Order, kind: str) -> Iterator[Reason]:
    """Yield every reason against the order, in the order of Reason."""
    sign = -1 if kind == "credit_note" else 1
    rows = order.rows
    applies = {
        Reason.UNREADABLE_ROW: bool(order.faults) or not order.number,
        Reason.BAD_DEBT_ADJUSTMENT: order.number[:1] == "A",
        Reason.UNKNOWN_SERIES: not order.number.removeprefix("C").isdecimal(),
        Reason.CONTRADICTORY_ROWS: len({(row.customer, row.country) for row in rows}) > 1,
        Reason.ZERO_TOTAL: all(row.price == 0 for row in rows),
        Reason.WRONG_SIGN: any(row.quantity * sign <= 0 for row in rows),
        Reason.NEGATIVE_PRICE: any(row.price < 0 for row in rows),
        Reason.FRACTION_OF_A_PENNY: any(row.pence is None for row in rows),
        Reason.UNKNOWN_CUSTOMER: not all(row.customer for row in rows),
    }
    yield from (reason for reason in Reason if applies.get(reason))


def _input(order: Order, kind: str) -> dict[str, Any]:
    first = min(order.rows, key=lambda row: row.ordered_at)  # a few orders run over the minute
    return {
        "order": order.number,
        "kind": kind,
        "customer": customer(first.customer, first.country),
        "country": first.country,
        "ordered_at": first.ordered_at.isoformat(),
        "currency": "GBP",
        "lines": [_line(row) for row in order.rows],
    }


def customer(number: str, country: str) -> dict[str, str]:
    """Make up a name and an address that nobody has for a customer of whom only the number is known."""
    name = _NAMES.get(country, "Customer {}").format(number)
    return {"id": number, "name": name, "email": f"customer-{number}@example.com"}


def _line(row: Row) -> dict[str, Any]:
    return {
        "sku": row.sku,
        "description": row.description,
        "quantity": abs(row.quantity),
        "unit_pence": row.pence,
    }
