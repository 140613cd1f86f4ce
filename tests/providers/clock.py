"""The only timed assertion here: that something which must end has ended, with a second for a busy machine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds + 1, f"took {took:.1f} s of {seconds} s"
