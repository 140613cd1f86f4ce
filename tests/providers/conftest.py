"""The outside world of the providers' tests: real servers on free ports."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from local.payments import PaymentServer
from tests.providers.bank import Bank


@pytest.fixture
def bank() -> Iterator[Bank]:
    server = PaymentServer()
    yield Bank(server, f"http://127.0.0.1:{server.start()}")
    server.stop()
