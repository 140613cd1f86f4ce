"""W3C trace context: taken from the caller, carried by every outbox row and message."""

from __future__ import annotations

import re

# W3C Trace Context, level 1, section 3.2: version, trace id, parent id, flags; neither id is all zeros.
TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def traceparent_of(header: str | None) -> str | None:
    """Return the caller's traceparent when it is well-formed, else None: it is a diagnostic, not an input."""
    return header if header and TRACEPARENT.fullmatch(header) else None
