"""What is never shown to an operator: the fields of inputs and results that pipeline.yaml marks as sensitive."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

HIDDEN = "•••"
EVERY = "*"


def redact(value: Any, paths: Iterable[str]) -> Any:
    """Return a copy of a JSON value whose marked members are hidden.

    A path names members by dots (`customer.email`), `*` is every member or element (`lines.*.text`), and a path that
    leads to an object or array hides all of it. Input may have another shape than the path expects: a text or number in
    the place of an object is hidden, and each element of a list there is looked into. A missing member hides nothing.
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
        inside = rest if first == EVERY else path
        return [_hidden(item, inside) for item in value]
    return None if value is None else HIDDEN
