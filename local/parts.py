"""One process of the local stack: started with its own log, watched, stopped with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from shared.errors import UnavailableError

START_TIMEOUT = 60.0  # seconds; a cold start of every function at once on two busy cores takes twenty
STOP_TIMEOUT = 5.0  # seconds from the polite signal to the kill
TETHER = Path(__file__).with_name("tether.py")
LOG_TAIL = 2000  # characters of a part's log shown when it fails


class PartFailedError(UnavailableError):
    """A part of the local stack did not start or has stopped."""


class Part:
    """A process in a session of its own, so that Ctrl-C reaches the stack alone and a kill reaches all of it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str], log: Path) -> None:
        self.name = name
        self.starts = 0
        self.command = list(command)
        self._env = dict(env)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> None:
        """Start the process; its output goes to its log."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                tethered(self.command),
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.starts += 1

    def wait_for_port(self, port: int, timeout: float = START_TIMEOUT) -> None:
        """Wait until the process listens on a port of 127.0.0.1; raises PartFailedError."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline and self.pid is not None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                return
            time.sleep(0.03)
        raise self.failed("did not start")

    def failed(self, what: str) -> PartFailedError:
        """Return the error that says what happened, with the end of the part's log."""
        tail = self._log.read_text(errors="replace")[-LOG_TAIL:].strip() if self._log.exists() else ""
        return PartFailedError(f"{self.name} {what}" + (f"; its log ends:\n{tail}" if tail else ""))

    def kill(self) -> None:
        """Kill the process and all that it started, as the kernel would: SIGKILL, nothing is said first."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._signal(signal.SIGTERM)

    def wait_stopped(self, timeout: float = STOP_TIMEOUT) -> None:
        """Wait for its end after `terminate`, then kill what is left of it."""
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout)
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)


def tethered(command: Sequence[str], number: signal.Signals = signal.SIGTERM, user: str = "") -> list[str]:
    """Return the command that runs `command`, sent a signal by Linux when the thread that starts it dies.

    With `user` it runs as that account, which only root may ask for.
    """
    return [sys.executable, "-S", "-E", str(TETHER), str(int(number)), user, *command]
