"""Loaded first by the processes whose clock is off: libfaketime 0.9.10 fails clock_nanosleep, which is time.sleep."""

import select
import time


def sleep(seconds: float) -> None:
    """Sleep by another system call."""
    select.select([], [], [], seconds)


time.sleep = sleep  # type: ignore[assignment]
