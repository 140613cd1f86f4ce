"""The servers as processes: their ready line, SIGKILL and restart, clean ends, ports and folders in use."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import requests

from local.pubsub import PubSubServer
from local.serving.host import PortInUseError
from tests.conformance.cases import Backend
from tests.local.endpoint import Answer, Endpoint
from tests.local.process import ROOT, ServerProcess
from tests.local.tasks import Tasks, duration, in_seconds


def test_tasks_survive_sigkill(tmp_path: Path, endpoint: Endpoint, name: str) -> None:
    process = ServerProcess("local.cloudtasks", "--data", str(tmp_path))
    tasks = Tasks(process.addresses["tasks"])
    queue = tasks.queue(name, retry_config={"min_backoff": duration(0.1)})
    url = endpoint.url(f"/{name}")
    tasks.create(queue, url, name="done")
    tasks.wait_empty(queue)
    tasks.create(queue, url, name="later", schedule_time=in_seconds(2))
    interrupted = endpoint.url(f"/{name}-slow", Answer(delay=5), Answer())
    tasks.create(queue, interrupted, name="interrupted")
    endpoint.wait(f"/{name}-slow", 1)
    process.kill()

    process.restart()
    tasks = Tasks(process.addresses["tasks"])
    with pytest.raises(Exception, match="too recently"):
        tasks.create(queue, url, name="done")
    again = endpoint.wait(f"/{name}-slow", 2)[1]
    assert again.headers["X-CloudTasks-TaskRetryCount"] == "1"
    assert endpoint.wait(f"/{name}", 2)[1].headers["X-CloudTasks-TaskName"] == "later"
    tasks.wait_empty(queue)
    assert process.end() == 0


def test_cloud_runs_all_three_in_one_process(tmp_path: Path, endpoint: Endpoint, name: str) -> None:
    process = ServerProcess("local.cloud", "--data", str(tmp_path))
    assert set(process.addresses) == {"certs", "pubsub", "tasks"}
    assert len(requests.get(process.addresses["certs"], timeout=10).json()) == 1
    kid = requests.get(process.addresses["certs"], timeout=10).json().keys()
    backend = Backend("local", process.addresses["pubsub"])
    topic, _ = backend.pair(name, endpoint.url(f"/{name}"))
    backend.publish(topic, {"data": b"x"})
    tasks = Tasks(process.addresses["tasks"])
    tasks.create(tasks.queue(name), endpoint.url(f"/{name}"))
    endpoint.wait(f"/{name}", 2)
    assert process.end(signal.SIGINT) == 0
    process.restart()  # the same key, so that tokens of before still verify
    assert requests.get(process.addresses["certs"], timeout=10).json().keys() == kid
    assert process.end() == 0


def test_end_does_not_wait_for_pushes_in_flight(tmp_path: Path, endpoint: Endpoint, name: str) -> None:
    process = ServerProcess("local.pubsub", "--data", str(tmp_path))
    backend = Backend("local", process.addresses["pubsub"])
    topic, _ = backend.pair(name, endpoint.url(f"/{name}", Answer(delay=60)), ack_deadline_seconds=600)
    backend.publish(topic, {"data": b"x"})
    endpoint.wait(f"/{name}", 1)
    began = time.monotonic()
    assert process.end() == 0
    assert time.monotonic() - began < 15


def test_port_in_use_is_said_and_not_shared() -> None:
    first, second = PubSubServer(), PubSubServer()
    port = first.start()
    with pytest.raises(PortInUseError):
        second.start(port=port)
    first.stop()
    second.start(port=port)
    second.stop()


def test_folder_in_use_is_said(tmp_path: Path) -> None:
    server = PubSubServer(tmp_path)
    server.start()
    command = [sys.executable, "-m", "local.pubsub", "--data", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    server.stop()
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == "Another process has opened this data folder\n"
