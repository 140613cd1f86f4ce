"""What is never shown to an operator: the fields of inputs and results that pipeline.yaml marks as sensitive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

HIDDEN = "•••"
EVERY = "*"


def redact(value: Any, paths: Iterable[str]) -> Any:
    """Return a copy of a JSON value whose marked members are hidden.

    A path names members by dots (`customer.email`), `*` is every member or element (`lines.*.text`), and a path that
    leads to an object or array hides all of it. A path that leads nowhere hides nothing.
    """
    for path in paths:
        value = _hidden(value, path.split("."))
    return value


def _hidden(value: Any, path: list[str]) -> Any:
    if not path:
        return HIDDEN
    first, rest = path[0], path[1:]
    if isinstance(value, dict):
        return {key: _hidden(item, rest) if first in (EVERY, key) else item for key, item in value.items()}
    if isinstance(value, list):
        return [_hidden(item, rest) if first in (EVERY, str(index)) else item for index, item in enumerate(value)]
    return value
