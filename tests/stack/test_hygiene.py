"""What a stack leaves behind: nothing, however it ends, and a word on why."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from local import topology
from local.parts import PartFailedError
from local.postgres import free_port
from local.stack import ROOT, Stack
from shared.errors import UnavailableError
from shared.pipeline import Pipeline
from tests.stack.kit import PIPELINE, TIMEOUTS, folder_for_all, functions_in

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

GONE_WITHIN = 40.0  # seconds; gunicorn lets requests end for up to thirty


@pytest.fixture
def folder() -> Iterator[Path]:
    with folder_for_all() as folder:
        yield folder


class Supervisor:
    """A stack in a process of its own, and what it has started."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "tests.stack.supervisor", str(folder), str(free_port())]
        environment = {**os.environ, **TIMEOUTS, "STACK_TEST_FLAGS": str(folder)}
        self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line.startswith("{"):
            self.process.kill()
            pytest.fail(f"the stack did not start: {line}{self.process.communicate()[0]}")
        up: dict[str, Any] = json.loads(line)
        self.parts: dict[str, int] = up["parts"]
        self.ports: list[int] = up["ports"]
        self.started = [psutil.Process(pid) for pid in up["pids"]]
        assert len(self.started) > 10
        assert len(set(self.ports)) > 10

    def end(self, timeout: float = 60) -> tuple[int, str]:
        """Wait for the end; return the exit code and what was said last."""
        said, _ = self.process.communicate(timeout=timeout)
        return self.process.returncode, said

    def check_nothing_is_left(self) -> None:
        _, alive = psutil.wait_procs(self.started, timeout=GONE_WITHIN)
        left = [" ".join(process.cmdline()) for process in alive]
        for process in alive:
            process.kill()
        assert left == []
        for port in self.ports:
            check_free(port)


def children() -> set[int]:
    """What runs below this process; other tests of it have servers of their own."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


def check_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_sigkill_of_the_supervisor_leaves_no_process_and_no_port(folder: Path) -> None:
    supervisor = Supervisor(folder)
    supervisor.process.kill()
    assert supervisor.end()[0] == -signal.SIGKILL
    supervisor.check_nothing_is_left()


def test_ctrl_c_stops_everything(folder: Path) -> None:
    supervisor = Supervisor(folder)
    supervisor.process.send_signal(signal.SIGINT)
    code, said = supervisor.end()
    assert code == 130
    assert "Traceback" not in said
    supervisor.check_nothing_is_left()


def test_a_server_that_dies_ends_the_stack_and_is_named(folder: Path) -> None:
    supervisor = Supervisor(folder)
    os.kill(supervisor.parts["cloud"], signal.SIGKILL)
    code, said = supervisor.end()
    assert code == 1
    assert said.startswith("PartFailedError: cloud has stopped")
    supervisor.check_nothing_is_left()


def test_a_port_in_use_is_said_and_nothing_is_left_behind(folder: Path) -> None:
    before, environment = children(), dict(os.environ)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stack = Stack(folder / "data", port=port, pipeline_file=PIPELINE, functions=functions_in(folder / "functions"))
        began = time.monotonic()
        with pytest.raises(PartFailedError, match=f"port {port} of 127.0.0.1 is in use"):
            stack.start()
        assert time.monotonic() - began < GONE_WITHIN
    assert children() <= before
    assert stack.parts == {}
    # nor in this process: a second stack would take it for the user's own server
    assert dict(os.environ) == environment


def test_a_function_that_cannot_start_is_named_with_its_log(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = children()
    functions = functions_in(folder / "functions")
    for name, value in TIMEOUTS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("STACK_TEST_FLAGS", str(folder))
    (functions / "seal" / "main.py").write_text("raise RuntimeError('this function is broken')\n")
    stack = Stack(folder / "data", port=free_port(), pipeline_file=PIPELINE, functions=functions)
    with pytest.raises(PartFailedError, match=r"(?s)seal did not start.*this function is broken"):
        stack.start()
    assert children() <= before


def test_a_pubsub_server_that_is_away_is_named() -> None:
    away = f"127.0.0.1:{free_port()}"
    with pytest.raises(UnavailableError, match=f"Pub/Sub at {away} cannot be set up"):
        topology.create(Pipeline.load(PIPELINE), "some-project", away, {}, "push@example.com")
