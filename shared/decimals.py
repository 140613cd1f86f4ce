"""JSON numbers, compared with the doubles that stand for them digit by digit, safely for any literal."""

from __future__ import annotations

import math
from typing import NamedTuple

_PLAIN_DIGITS = 21  # ECMA-262 7.1.12.1: integers of up to 21 digits are written without an exponent


class _Decimal(NamedTuple):
    """A decimal number as sign, significant digits (no zeros at either end) and power of ten."""

    negative: bool
    digits: str
    exponent: int


def exact_number(literal: str) -> int | float | None:
    """Read a JSON number, or None when a double cannot hold it digit for digit.

    Gives an int when the canonical form has neither fraction nor exponent. Linear in the literal's length:
    a large exponent is compared, never expanded.
    """
    wanted = _decompose(literal)
    if not wanted.digits:
        return 0
    # No double is spelled with more than 17 significant digits, and none lies beyond a power of 400.
    if len(wanted.digits) > 17 or abs(wanted.exponent) > 400:
        return None
    number = float(f"{'-' if wanted.negative else ''}{wanted.digits}e{wanted.exponent}")
    if not math.isfinite(number) or number == 0 or _decompose(repr(number)) != wanted:
        return None
    if 0 <= wanted.exponent <= _PLAIN_DIGITS - len(wanted.digits):
        whole = int(wanted.digits + "0" * wanted.exponent)
        return -whole if wanted.negative else whole
    return number


def _decompose(literal: str) -> _Decimal:
    mantissa, _, power = literal.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return _Decimal(negative=False, digits="", exponent=0)
    exponent = _bounded_power(power) - len(fraction) + len(digits) - len(significant)
    return _Decimal(literal.startswith("-"), significant, exponent)


def _bounded_power(power: str) -> int:
    """Read an exponent; more than nine digits count as a billion, which no text's length can offset."""
    if not power:
        return 0
    sign = -1 if power.startswith("-") else 1
    digits = power.lstrip("+-").lstrip("0")
    return sign * (10**9 if len(digits) > 9 else int(digits or "0"))
