"""What is marked as sensitive is hidden, also in an input that does not have the shape which the mark expects."""

from __future__ import annotations

from typing import Any

import pytest

from shared.redaction import HIDDEN, redact

MARKED = ["customer.name", "customer.email", "lines.*.text"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({"customer": {"id": 7, "name": "Ada"}}, {"customer": {"id": 7, "name": HIDDEN}}),
        ({"customer": {"name": {"first": "Ada"}}}, {"customer": {"name": HIDDEN}}),
        ({"lines": [{"text": "for Ada", "n": 1}]}, {"lines": [{"text": HIDDEN, "n": 1}]}),
        ({"customer": "Ada <ada@example.com>"}, {"customer": HIDDEN}),
        ({"customer": [{"name": "Ada", "id": 7}, "Eve"]}, {"customer": [{"name": HIDDEN, "id": 7}, HIDDEN]}),
        ({"lines": ["for Ada"]}, {"lines": [HIDDEN]}),
        ({"customer": 7, "lines": True}, {"customer": HIDDEN, "lines": HIDDEN}),
        ({"customer": None, "order": "536365"}, {"customer": None, "order": "536365"}),
        ({}, {}),
    ],
)
def test_marked_members_are_hidden_whatever_the_shape_around_them(given: Any, shown: Any) -> None:
    assert redact(given, MARKED) == shown
