"""A server of `local` as a process of its own, which can be killed and started again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


class ServerProcess:
    """`python -m MODULE ARGUMENTS…`; `addresses` is the JSON of its ready line."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._command = [sys.executable, "-m", module, *arguments]
        self._process = self._spawn()
        self.addresses: dict[str, str] = self._ready()

    def _spawn(self) -> subprocess.Popen[str]:
        return subprocess.Popen(self._command, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})

    def _ready(self) -> dict[str, str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"no ready line, exit code {self._process.wait()}"
        addresses: dict[str, str] = json.loads(line)
        return addresses

    def kill(self) -> None:
        """SIGKILL."""
        self.end(signal.SIGKILL)

    def end(self, number: int = signal.SIGTERM, timeout: float = 20.0) -> int:
        """Send a signal, wait, and return the exit code."""
        self._process.send_signal(number)
        try:
            code = self._process.wait(timeout)
        finally:
            if self._process.stdout is not None:
                self._process.stdout.close()
        return code

    def restart(self) -> None:
        """Start again after its end, with the same arguments."""
        self._process = self._spawn()
        self.addresses = self._ready()
