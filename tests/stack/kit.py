"""A stack of real processes with the test pipeline, and what a test does to it and reads of it."""

from __future__ import annotations

import base64
import contextlib
import copy
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import requests

from local.client import Client, Submitted
from local.parts import Part
from local.postgres import free_port
from local.signing import Signer
from local.stack import PLUMBING, PUSH_ACCOUNT, ROOT, Stack
from shared import envelope, operations
from shared.database import Connection, Database, connector
from shared.identity import Options, Request
from shared.publisher import Dispatch
from tests.stack import faults

HERE = Path(__file__).parent
PIPELINE = HERE / "pipeline.yaml"
TICK = 0.5  # seconds between two calls of relay and reconcile
PATIENCE = 45.0  # seconds; recovery takes seven, on a machine that is busy with something else some more
TIMEOUTS = {  # shorter than the test pipeline's leases
    "STATEMENT_TIMEOUT": "4s",
    "LOCK_TIMEOUT": "4s",
    "IDLE_IN_TRANSACTION_TIMEOUT": "4s",
}
TENANT = "shop"
_numbers = itertools.count(1)


@contextlib.contextmanager
def folder_for_all() -> Iterator[Path]:
    """Make a folder for a stack: open to PostgreSQL, which runs as another user when the tests run as root."""
    folder = Path(tempfile.mkdtemp(prefix="echoproof-stack-"))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def functions_in(folder: Path, own: str = "functions") -> Path:
    """Gather the test's functions and the real ones in one folder."""
    shutil.copytree(HERE / own, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in PLUMBING:
        if not (folder / name).exists():
            (folder / name).symlink_to(ROOT / "functions" / name)
    return folder


@contextlib.contextmanager
def scene(name: str) -> Iterator[Stack]:
    """Run a stack with the pipeline `<name>.yaml` and the step functions in the folder `<name>`; a tick is a second."""
    with folder_for_all() as folder:
        shutil.copytree(HERE / name, folder / "functions", ignore=shutil.ignore_patterns("__pycache__"))
        for function in PLUMBING:
            (folder / "functions" / function).symlink_to(ROOT / "functions" / function)
        with Stack(
            folder / "data",
            port=free_port(),
            tick=1.0,
            pipeline_file=HERE / f"{name}.yaml",
            functions=folder / "functions",
        ) as stack:
            yield stack


class Rig:
    """One running stack."""

    def __init__(self, folder: Path, pipeline: Path = PIPELINE, functions: str = "functions") -> None:
        self.flags = folder / "flags"
        self.flags.mkdir()
        os.environ.update({faults.FLAGS: str(self.flags), **TIMEOUTS})
        self.stack = Stack(
            folder / "data",
            port=free_port(),
            tick=TICK,
            pipeline_file=pipeline,
            functions=functions_in(folder / "functions", functions),
        )
        self._others: list[Part] = []
        self.stack.start()
        url = self.stack.addresses.database
        self.client = Client(self.stack.addresses.intake, TENANT)
        self.database = Database(connector(url), size=8)
        self.signer = Signer(self.stack.data / "cloud")
        self._raw = Connection(connector(url)())
        self._grant()

    def _grant(self) -> None:
        """Let the functions of these tests that stand for real ones write the same tables."""
        for function in self.stack.pipeline.functions:
            if function.endswith("_record"):
                self._raw.execute(f"GRANT echoproof_invoice_record TO echoproof_{function}")

    def close(self) -> None:
        self._raw.close()
        self.database.close()
        for part in self._others:
            part.kill()
            part.wait_stopped()
        self.stack.stop()
        for name in (faults.FLAGS, *TIMEOUTS):
            del os.environ[name]

    def query(self, sql: str) -> list[list[Any]]:
        return list(self._raw.raw.run(sql) or [])

    def submit(self, point: str, kind: str = "invoice.generate", given: dict[str, Any] | None = None) -> Submitted:
        """Submit an operation over HTTP; its key says where the process dies."""
        key = f"{point}-{next(_numbers)}"
        body = {"type": kind, "input": order(key) if given is None else given}
        return self.client.submit(body, key)

    def submit_alone(self, point: str) -> Submitted:
        """Submit from a thread of the test's own: a client is one thread's."""
        key = f"{point}-{next(_numbers)}"
        client = Client(self.stack.addresses.intake, TENANT)
        return client.submit({"type": "invoice.generate", "input": order(key)}, key)

    def accept(self, point: str, kind: str = "invoice.generate", given: dict[str, Any] | None = None) -> Dispatch:
        """Accept an operation that nobody publishes for a minute, and return its first message."""
        key = f"{point}-{next(_numbers)}"
        request = Request(kind, order(key) if given is None else given, Options())
        return operations.accept(self.database, self.stack.pipeline, TENANT, key, request).due[0]

    def rest(self, operation_id: str | UUID, patience: float = PATIENCE) -> str:
        """Wait until the operation has come to rest and return its state."""
        return str(self.client.wait(str(operation_id), patience)["state"])

    def step(self, operation_id: str | UUID, step: str = "record") -> dict[str, Any]:
        row = self.query(
            f"SELECT row_to_json(s) FROM steps s WHERE operation_id = '{operation_id}' AND step = '{step}'"
        )[0][0]
        return dict(row)

    def outcomes(self, operation_id: str | UUID, step: str = "record") -> list[str]:
        """How the step's attempts ended, in order."""
        rows = self.query(
            f"SELECT outcome FROM attempts WHERE operation_id = '{operation_id}' AND step = '{step}' ORDER BY attempt"
        )
        return [row[0] for row in rows]

    def invoices(self, operation_id: str | UUID) -> int:
        return int(self.query(f"SELECT count(*) FROM invoices WHERE operation_id = '{operation_id}'")[0][0])

    def until(self, condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> None:
        deadline = time.monotonic() + patience
        while not condition():
            assert time.monotonic() < deadline, f"waited {patience} s for {what}"
            time.sleep(0.05)

    def check(self) -> None:
        """The number series have no gap, no operation two invoices, and nothing unfinished is without an owner."""
        assert (
            self.query("SELECT kind, max(number) - count(*) FROM invoices GROUP BY kind HAVING max(number) <> count(*)")
            == []
        )
        assert self.query("SELECT operation_id FROM invoices GROUP BY operation_id HAVING count(*) > 1") == []
        assert self.query(ORPHANS) == []

    def url(self, function: str) -> str:
        return self.stack._url(function)

    def token(self, function: str) -> str:
        return self.signer.id_token(PUSH_ACCOUNT, self.url(function))

    def post(self, function: str, body: bytes, token: str | None = "", url: str = "") -> requests.Response:
        """Post to a function as Pub/Sub does, with its token unless another or none is given."""
        token = self.token(function) if token == "" else token
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        return requests.post(url or self.url(function), data=body, headers=headers, timeout=PATIENCE)

    def another(self, function: str, env: Mapping[str, str] | None = None) -> tuple[Part, str]:
        """Start another instance of a function, with more environment, and return it and its URL."""
        port = free_port()
        command = [sys.executable, *self.stack._function_command(function, port)]
        log = self.stack.data / f"{function}-{port}.log"
        part = Part(f"{function}-{port}", command, self.stack._function_env(function) | dict(env or {}), log)
        self._others.append(part)
        part.start()
        part.wait_for_port(port)
        url = f"http://127.0.0.1:{port}"
        self.until(lambda: requests.get(f"{url}/ready", timeout=PATIENCE).status_code < 500, "it to serve")
        return part, url

    def deliver(self, function: str, dispatch: Dispatch, url: str = "") -> dict[str, Any]:
        """Deliver a message, to another instance if its URL is given, and return the answer, which is 200."""
        answer = self.post(function, push(dispatch), url=url)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def messages(self) -> Counter[tuple[str, str, int]]:
        """How often each (operation, step, dispatch) was delivered to the functions that write it down."""
        seen: Counter[tuple[str, str, int]] = Counter()
        for line in (self.flags / "messages").read_bytes().splitlines():
            try:
                data = json.loads(base64.b64decode(json.loads(line)["message"]["data"]))
                seen[data["operation_id"], data["step"], data["dispatch"]] += 1
            except (ValueError, KeyError, TypeError):
                continue  # a malformed message of another test
        return seen

    def log(self, part: str) -> str:
        return (self.stack.data / f"{part}.log").read_text(errors="replace")


ORPHANS = """
    SELECT s.operation_id, s.step, s.state FROM steps s
    LEFT JOIN outbox x USING (operation_id, step)
    WHERE (s.state = 'queued' AND x.dispatch IS DISTINCT FROM s.dispatch)
        OR (s.state <> 'queued' AND x.operation_id IS NOT NULL)
"""


def order(reference: str) -> dict[str, Any]:
    """An order of its own, as the API takes it."""
    given = copy.deepcopy(json.loads((ROOT / "examples" / "invoice.generate.json").read_text())["input"])
    return dict(given) | {"order": reference}


def push(dispatch: Dispatch, message_id: str = "1") -> bytes:
    data = envelope.encode(dispatch.operation_id, dispatch.type, dispatch.step, dispatch.dispatch)
    message = {"messageId": message_id, "data": base64.b64encode(data).decode()}
    return json.dumps({"message": message, "subscription": "projects/p/subscriptions/s"}).encode()
