"""Google's Pub/Sub emulator from an installed Cloud SDK, or the local server where it is missing."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from local.parts import tethered
from local.postgres import free_port

START = 60.0  # seconds; a Java virtual machine on a busy machine
ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class PubSub:
    """A server of the Pub/Sub API: what it is and its address."""

    what: str
    address: str


@contextlib.contextmanager
def pubsub() -> Iterator[PubSub]:
    """Start one on a free port of 127.0.0.1; it ends with the block, and with this process."""
    with TemporaryDirectory(prefix="echoproof-bench-") as folder:
        port = free_port()
        script = _script()
        if isinstance(script, str):
            what = f"the local server, as Google's emulator is missing: {script}"
            command = [sys.executable, "-m", "local.pubsub", "--port", str(port), "--data", folder]
        else:
            what = "Google's emulator"
            command = [str(script), "--host=127.0.0.1", f"--port={port}", f"--data-dir={folder}"]
        with _process(command, Path(folder) / "log"):
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                grpc.channel_ready_future(channel).result(START)
            yield PubSub(what, f"127.0.0.1:{port}")


@contextlib.contextmanager
def _process(command: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            tethered(command),
            cwd=ROOT,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # nothing in it is worth a clean end
        process.wait()


def _script() -> Path | str:
    """Return the start script of Google's emulator, or why there is none."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return "gcloud (the Cloud SDK) is not on PATH"
    if shutil.which("java") is None:
        return "java is not on PATH"
    script = Path(gcloud).resolve().parents[1] / "platform" / "pubsub-emulator" / "bin" / "cloud-pubsub-emulator"
    return script if script.exists() else "the Cloud SDK has no pubsub-emulator component"
