"""Invoices and credit notes: what an `invoice.generate` input must be, and how documents are numbered."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from shared.invoicing.fields import MAX_PENCE, Email, Reference, Strict, Text, Timestamp, Title

MAX_LINES = 5_000  # the shop's longest order has 1,114; a PDF of 5,000 lines is about 120 pages
MAX_QUANTITY = 1_000_000  # the shop's largest is 80,995
MAX_UNIT_PENCE = 1_000_000_000  # ten million pounds; with the quantity a line stays below MAX_PENCE

Kind = Literal["invoice", "credit_note"]
PREFIXES: dict[str, str] = {"invoice": "INV", "credit_note": "CRN"}
TITLES: dict[str, str] = {"invoice": "Invoice", "credit_note": "Credit note"}


class Customer(Strict):
    """Who is billed; `id` is the account that reports are about."""

    id: Reference
    name: Annotated[Title, Field(max_length=200)]
    email: Email


class Line(Strict):
    """One line; the quantity is positive on credit notes too."""

    sku: Annotated[Title, Field(max_length=64)]
    description: Annotated[Text, Field(max_length=500)]
    quantity: Annotated[int, Field(ge=1, le=MAX_QUANTITY)]
    unit_pence: Annotated[int, Field(ge=0, le=MAX_UNIT_PENCE)]

    @property
    def total_pence(self) -> int:
        """Quantity times unit price, exact, in pence."""
        return self.quantity * self.unit_pence


class InvoiceInput(Strict):
    """The input of `invoice.generate`, complete and consistent."""

    order: Reference
    kind: Kind
    customer: Customer
    country: Annotated[Title, Field(max_length=64)]
    ordered_at: Timestamp
    currency: Literal["GBP"]
    lines: Annotated[list[Line], Field(min_length=1, max_length=MAX_LINES)]

    @property
    def total_pence(self) -> int:
        """Sum of the lines, exact, in pence, without tax."""
        return sum(line.total_pence for line in self.lines)

    @model_validator(mode="after")
    def _total_in_range(self) -> InvoiceInput:
        if not 1 <= self.total_pence <= MAX_PENCE:
            raise PydanticCustomError("total", "the total must be more than zero and at most 2^53 - 1 pence")
        return self


def document_number(kind: str, number: int) -> str:
    """Write a number of a series as it stands on the document, such as INV-000123."""
    return f"{PREFIXES[kind]}-{number:06d}"


def pounds(pence: int) -> str:
    """Write pence as pounds with two decimals and thousands separators, exact: 1234567 is 12,345.67."""
    whole, rest = divmod(abs(pence), 100)
    return f"{'-' if pence < 0 else ''}{whole:,}.{rest:02d}"
