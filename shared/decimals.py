"""JSON numbers, compared digit by digit with the doubles that stand for them, safely for any literal."""

from __future__ import annotations

import math
from decimal import Decimal

_SHORT = 25  # characters: every shortest spelling of a double fits, and float() and Decimal() of one are cheap
_MOST_DIGITS = 17  # significant digits that the shortest spelling of a double can have
_PLAIN = 1e21  # ECMA-262 7.1.12.1: an integer below is written without an exponent


def exact_number(literal: str) -> int | float | None:
    """Read a JSON number, or None when a double cannot hold it digit for digit.

    Gives an int when the canonical form has neither fraction nor exponent. Linear in the literal's length.
    """
    short = literal if len(literal) < _SHORT else _shorten(literal)
    if short is None:
        return None
    number = float(short)
    if number == 0:
        return None if any(digit in "123456789" for digit in short.lower().partition("e")[0]) else 0
    # A short literal whose double is neither zero nor infinite has a small exponent: Decimal stays cheap.
    if math.isinf(number) or Decimal(short) != Decimal(repr(number)):
        return None
    return int(Decimal(short)) if number.is_integer() and abs(number) < _PLAIN else number


def _shorten(literal: str) -> str | None:
    """Spell a number by its significant digits and a power of ten; None when they are too many for a double."""
    mantissa, _, power = literal.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if len(significant) > _MOST_DIGITS:
        return None
    exponent = _bounded_power(power) - len(fraction) + len(digits) - len(significant)
    return f"{'-' if literal.startswith('-') else ''}{significant}e{exponent}" if significant else "0"


def _bounded_power(power: str) -> int:
    """Read an exponent; more than nine digits count as a billion, which no text's length can offset."""
    sign = -1 if power.startswith("-") else 1
    digits = power.lstrip("+-").lstrip("0")
    return sign * (10**9 if len(digits) > 9 else int(digits or "0"))
