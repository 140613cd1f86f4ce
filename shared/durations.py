"""Durations as people write them in the pipeline file and in settings."""

from __future__ import annotations

import re
from datetime import timedelta

_DURATION = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,6})s)?(?:([0-9]{1,6})ms)?")


def duration(text: object) -> timedelta:
    """Read `40s`, `10m`, `1h30m`, `250ms` or `90d`: days, hours, minutes, seconds, milliseconds, in this order.

    Raises ValueError for anything else, zero included.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) else None
    if match is None or not match[0]:
        raise ValueError("must be a duration like 40s, 10m, 1h30m, 250ms or 90d")
    days, hours, minutes, seconds, milliseconds = (int(part or 0) for part in match.groups())
    span = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds, milliseconds=milliseconds)
    if not span:
        raise ValueError("must be longer than zero")
    return span
