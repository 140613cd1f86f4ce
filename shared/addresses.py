"""E-mail addresses, in the plain form that is accepted everywhere here."""

from __future__ import annotations

import re

# Deliberately narrower than RFC 5321: no quoted local parts, no address literals, no spaces, ASCII only. A
# domain in another script is written in its xn-- form.
_EMAIL = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@([A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\.)+[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)


def is_email(text: str) -> bool:
    """Tell whether a text is an e-mail address in the plain form that is accepted here."""
    return len(text) <= 254 and len(text.rpartition("@")[0]) <= 64 and bool(_EMAIL.fullmatch(text))
