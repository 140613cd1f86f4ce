"""The intake function as a real process before a real database, and a client that holds it to openapi.yaml."""

from __future__ import annotations

import http.client
import json
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from local.logins import make_logins
from local.parts import Part
from local.postgres import free_port
from local.signing import Signer
from shared.pipeline import Pipeline
from tests.http.contract import Contract
from tests.http.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
AUDIENCE = "https://intake.example"
APP = "app@project.iam.gserviceaccount.com"  # may use the tenants shop, branch and ledger
OTHER = "other@project.iam.gserviceaccount.com"  # may use the tenant rival
STRANGER = "stranger@project.iam.gserviceaccount.com"  # may use none
CALLERS = {APP: ["shop", "branch", "ledger"], OTHER: ["rival"]}
OPERATIONS = "/v1/tenants/shop/operations"
Headers = Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True)
class Answer:
    """What the function answered."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def problem(self) -> str:
        """The last part of the problem's type."""
        assert self.headers["Content-Type"] == "application/problem+json"
        return str(self.json["type"]).removeprefix("urn:echoproof:problem:")


@dataclass
class Service:
    """One intake process; every answer is checked against the contract as it comes."""

    contract: Contract
    signer: Signer
    part: Part
    port: int
    log_file: Path
    proxy: Proxy

    def send(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] | None = None,
        headers: Headers = (),
        *,
        caller: str | None = APP,
    ) -> Answer:
        """Send one request; an iterable body goes in chunks, without a length."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.putrequest(method, target, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        if caller is not None:
            connection.putheader("Authorization", f"Bearer {self.signer.id_token(caller, AUDIENCE)}")
        chunked = body is not None and not isinstance(body, bytes)
        if chunked:
            connection.putheader("Transfer-Encoding", "chunked")
        elif isinstance(body, bytes):
            connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body, encode_chunked=chunked)
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read())
        connection.close()
        self.contract.check(method, target, answer.status, answer.headers, answer.body)
        return answer

    def post(
        self,
        body: object,
        key: str,
        *,
        tenant: str = "shop",
        caller: str | None = APP,
        headers: Headers = (),
    ) -> Answer:
        """Ask for an operation; bytes are sent as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        every = [("Content-Type", "application/json"), ("Idempotency-Key", key), *headers]
        answer = self.send("POST", f"/v1/tenants/{tenant}/operations", data, every, caller=caller)
        if answer.status in (200, 202):
            self.contract.validate({"$ref": "#/components/schemas/OperationRequest"}, json.loads(data))
        return answer

    def get(self, target: str, headers: Headers = (), *, caller: str | None = APP) -> Answer:
        return self.send("GET", target, headers=headers, caller=caller)

    def cancel(self, target: str, *, caller: str | None = APP) -> Answer:
        return self.send("POST", f"{target}:cancel", b"", caller=caller)

    def raw(self, data: bytes, *, half_close: bool = True, caller: str | None = APP) -> bytes:
        """Send bytes over a socket, `{token}` replaced by an Authorization header, and return all that comes."""
        token = b"" if caller is None else f"Authorization: Bearer {self.signer.id_token(caller, AUDIENCE)}".encode()
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(data.replace(b"{token}", token))
            if half_close:
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            while chunk := connection.recv(65_536):
                answer += chunk
        return answer

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def restart(self) -> None:
        """Kill the process as the kernel would, and start another one."""
        self.part.kill()
        self.part.wait_stopped()
        self.part.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it serves: the port is open before the function is loaded."""
        self.part.wait_for_port(self.port)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self.get("/ready")
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            else:
                return
        raise self.part.failed("does not answer")


def service_for(
    database_url: str, signer: Signer, certs_url: str, pubsub: str, pipeline_file: Path, folder: Path
) -> Service:
    """Start intake before a database, through a proxy."""
    pipeline = Pipeline.load(pipeline_file)
    parts = urlsplit(make_logins(database_url, pipeline)["intake"])
    proxy = Proxy(parts.port or 5432)
    port = free_port()
    arguments = ["--source", str(ROOT / "functions/intake/main.py"), "--target", "main", "--host", "127.0.0.1"]
    env = {
        "DATABASE_URL": parts._replace(netloc=f"{parts.username}@127.0.0.1:{proxy.port}").geturl(),
        "GOOGLE_CLOUD_PROJECT": "echoproof-test",
        "PIPELINE_FILE": str(pipeline_file),
        "CALLERS": json.dumps(CALLERS),
        "INTAKE_AUDIENCE": AUDIENCE,
        "TOKEN_CERTS_URL": certs_url,
        "PUBSUB_EMULATOR_HOST": pubsub,
        "TASKS_LOCATION": "europe-west2",
        "TASKS_ACCOUNT": "tasks@project.iam.gserviceaccount.com",
        "STEP_URLS": json.dumps(dict.fromkeys(pipeline.functions, "https://step.example")),
        "CLOUD_TASKS_EMULATOR_HOST": f"127.0.0.1:{free_port()}",  # nothing listens: the relay's to hand over
        "THREADS": "8",
        "POOL_SIZE": "8",
        "LOCK_TIMEOUT": "4s",  # a test waits for it
        "PYTHONPATH": str(ROOT),
    }
    log = folder / "intake.log"
    command = [sys.executable, "-m", "functions_framework", *arguments, "--port", str(port)]
    service = Service(Contract(), signer, Part("intake", command, env, log), port, log, proxy)
    service.part.start()
    service.wait()
    return service
