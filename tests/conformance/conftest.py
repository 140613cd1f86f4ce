"""The two servers that the same cases run against: ours, and Google's emulator from an installed Cloud SDK."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from local.postgres import free_port
from tests.conformance.cases import Backend, Scenes
from tests.local.endpoint import Endpoint
from tests.local.process import ServerProcess

START = 60.0  # seconds; a Java virtual machine on a busy machine
_numbers = itertools.count(1)


def emulator_script() -> Path | str:
    """Return the start script of Google's emulator, or why there is none."""
    gcloud = shutil.which("gcloud")
    if gcloud is None:
        return "gcloud (the Cloud SDK) is not on PATH"
    if shutil.which("java") is None:
        return "java is not on PATH"
    root = Path(gcloud).resolve().parents[1]
    script = root / "platform" / "pubsub-emulator" / "bin" / "cloud-pubsub-emulator"
    return script if script.exists() else "the Cloud SDK has no pubsub-emulator component"


def _google(folder: Path) -> Iterator[str]:
    script = emulator_script()
    if isinstance(script, str):
        pytest.skip(f"Google's Pub/Sub emulator is not installed: {script}")
    port = free_port()
    command = [str(script), "--host=127.0.0.1", f"--port={port}", f"--data-dir={folder}"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(START)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the script's child, the virtual machine, is in its group
        process.wait()


def _local(folder: Path) -> Iterator[str]:
    server = ServerProcess("local.pubsub", "--data", str(folder))
    try:
        yield server.addresses["pubsub"]
    finally:
        assert server.end() == 0


@pytest.fixture(scope="session", params=["local", "google"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    folder = tmp_path_factory.mktemp(request.param)
    starting = _local(folder) if request.param == "local" else _google(folder)
    for address in starting:
        yield Backend(request.param, address)


@pytest.fixture(scope="session")
def endpoint() -> Iterator[Endpoint]:
    endpoint = Endpoint()
    yield endpoint
    endpoint.close()


@pytest.fixture(scope="session")
def scenes(server: Backend, endpoint: Endpoint) -> Scenes:
    """The cases that take ten seconds or more, begun together so that their waits overlap."""
    return Scenes(server, endpoint)


@pytest.fixture
def backend(server: Backend, scenes: Scenes) -> Backend:  # scenes begin before the first test
    return server


@pytest.fixture
def name() -> str:
    """A name of this test's own, for topics, subscriptions and paths."""
    return f"case-{os.getpid()}-{next(_numbers)}"
