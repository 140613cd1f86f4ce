"""The whole pipeline on one machine: every function its own functions-framework process, real servers behind them.

A server whose variable is set (DATABASE_URL, STORAGE_EMULATOR_HOST, SMTP_URL, PUBSUB_EMULATOR_HOST) is used as it
is and neither started nor stopped. A function that dies is started again, as Cloud Run would; a server that dies
ends the stack.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local import topology
from local.gateway import Gateway
from local.objects import ObjectServer
from local.parts import Part, PartFailedError
from local.postgres import Postgres, free_port, reachable
from local.scheduler import Scheduler
from local.signing import CERTS_PATH, Signer
from shared.database import connector
from shared.migrate import migrate
from shared.pipeline import Pipeline

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "echoproof-local"
PUSH_ACCOUNT = f"push@{PROJECT}.iam.gserviceaccount.com"
SCHEDULER_ACCOUNT = f"scheduler@{PROJECT}.iam.gserviceaccount.com"
BUCKET = "echoproof-artifacts"
SCHEDULED = ("relay", "reconcile")
PLUMBING = ("intake", "relay", "reconcile", "dead_letter")
TICK = 2.0  # seconds between calls of relay and reconcile; a minute in the cloud
THREADS = 4  # requests that one function process serves at once
RESTARTS = 20  # of one function within a stack's life, beyond which something is wrong with it
WATCH_EVERY = 0.1  # seconds

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Addresses:
    """Where the parts listen."""

    intake: str
    database: str
    sent_log: str | None
    payments: str | None
    receiver: str | None


class Stack:
    """Starts, watches and stops the parts; a context manager. `data` keeps everything, and a later run goes on."""

    def __init__(
        self,
        data: Path,
        *,
        port: int = 8080,
        tick: float = TICK,
        pipeline_file: Path = ROOT / "pipeline.yaml",
        functions: Path = ROOT / "functions",
        payment_faults: Mapping[str, float] | None = None,
        progress: Progress = lambda _: None,
    ) -> None:
        self.data = data
        self.pipeline = Pipeline.load(pipeline_file)
        self.parts: dict[str, Part] = {}
        self._pipeline_file = pipeline_file
        self._functions = functions
        self._port = port
        self._tick = tick
        self._payment_faults = dict(payment_faults or {})
        self._progress = progress
        self._env: dict[str, str] = {}
        self._servers: list[Postgres | ObjectServer] = []
        self._scheduler: Scheduler | None = None
        self._gateway: Gateway | None = None
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._stopping = threading.Event()
        self.held: set[str] = set()  # parts that are down on purpose
        self.failure: PartFailedError | None = None

    def __enter__(self) -> Stack:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def addresses(self) -> Addresses:
        """Where to reach it."""
        receiver = self._env["WEBHOOK_URL"].rpartition("/")[0] if "receiver" in self.parts else None
        return Addresses(
            self._url("intake"),
            self._env["DATABASE_URL"],
            self._env.get("SENT_LOG_URL"),
            self._env.get("PAYMENTS_URL"),
            receiver,
        )

    @property
    def objects_url(self) -> str:
        """URL of the object storage."""
        return self._env["STORAGE_EMULATOR_HOST"]

    def start(self) -> None:
        """Start everything and return when all of it answers; raises PartFailedError, with nothing left behind."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self._start_servers()
            self._start_functions()
            topology.create(
                self.pipeline, PROJECT, self._env["PUBSUB_EMULATOR_HOST"], self._push_endpoints(), PUSH_ACCOUNT
            )
            self._start_scheduler()
            self._watcher.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything that was started; safe to call again."""
        self._stopping.set()
        if self._scheduler is not None:
            self._scheduler.stop()
        if self._gateway is not None:
            self._gateway.stop()
            self._gateway = None
        if self._watcher.is_alive():
            self._watcher.join()
        for names in (self._function_names, tuple(self.parts)):
            for name in names:
                if name in self.parts:
                    self.parts[name].terminate()
            for name in names:
                if name in self.parts:
                    self.parts.pop(name).wait_stopped()
        for server in self._servers:
            server.stop()
        self._servers.clear()

    def wait(self) -> None:
        """Wait until a server of the stack dies, and raise the PartFailedError that says which."""
        while self.failure is None:
            time.sleep(WATCH_EVERY)
        raise self.failure

    def hold_down(self, name: str) -> None:
        """Stop a part and keep it down until `bring_up`."""
        self.held.add(name)
        self.parts[name].terminate()
        self.parts[name].wait_stopped()

    def bring_up(self, name: str) -> None:
        """Start a part that was held down."""
        self.parts[name].start()
        self.held.discard(name)

    @property
    def _function_names(self) -> tuple[str, ...]:
        return (*PLUMBING, *self.pipeline.functions)

    @property
    def _urls(self) -> dict[str, str]:
        return {name: self._url(name) for name in self._function_names}

    def _url(self, name: str) -> str:
        return self._env[f"URL_{name}"]

    def _start_servers(self) -> None:
        # All from this thread: the kernel ends a part when the thread that started it ends.
        self._progress("servers")
        servers = (self._cloud(), self._mail(), self._payments(), self._receiver())
        waits = [wait for wait in servers if wait is not None]
        self._objects()
        self._database()
        for part, port in waits:
            part.wait_for_port(port)
        self._progress("migrations")
        migrate(connector(self._env["DATABASE_URL"]))

    def _database(self) -> None:
        url = os.environ.get("DATABASE_URL")
        if url is None:
            server = Postgres(reachable(self.data / "postgres"))
            self._servers.append(server)
            server.start()
            url = server.url
        self._env["DATABASE_URL"] = url

    def _objects(self) -> None:
        self._env["ARTIFACTS_BUCKET"] = os.environ.get("ARTIFACTS_BUCKET", BUCKET)
        url = os.environ.get("STORAGE_EMULATOR_HOST")
        if url is None:
            folder = self.data / "objects"
            folder.mkdir(exist_ok=True)
            server = ObjectServer(folder, BUCKET)
            self._servers.append(server)
            server.start()
            url = server.url
        self._env["STORAGE_EMULATOR_HOST"] = url

    def _mail(self) -> tuple[Part, int] | None:
        self._env["MAIL_FROM"] = os.environ.get("MAIL_FROM", "billing@echoproof.example")
        if "SMTP_URL" in os.environ:
            self._env["SMTP_URL"] = os.environ["SMTP_URL"]
            return None
        smtp, http = free_port(), free_port()
        self._env |= {"SMTP_URL": f"smtp://127.0.0.1:{smtp}", "SENT_LOG_URL": f"http://127.0.0.1:{http}"}
        folder = self.data / "mail"
        command = ["-m", "local.mail", "--smtp-port", str(smtp), "--http-port", str(http), "--data", str(folder)]
        return self._part("mail", command), http

    def _payments(self) -> tuple[Part, int] | None:
        if "PAYMENTS_KEY" in os.environ:
            return None  # an account of one's own, which the functions read from the environment
        port = free_port()
        self._env |= {
            "PAYMENTS_URL": f"http://127.0.0.1:{port}",
            "PAYMENTS_KEY": "sk_test_local",
            "PAYMENTS_VISIBILITY": "1s",
            "PAYMENTS_TIMEOUT": "5s",
        }
        command = ["-m", "local.payments", "--port", str(port), "--data", str(self.data / "payments")]
        return self._part("payments", [*command, "--rates", json.dumps(self._payment_faults)]), port

    def _receiver(self) -> tuple[Part, int] | None:
        if "WEBHOOK_URL" in os.environ:
            return None
        port, secret = free_port(), f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self._env |= {"WEBHOOK_URL": f"http://127.0.0.1:{port}/webhooks", "WEBHOOK_SECRET": secret}
        command = ["-m", "local.receiver", "--port", str(port), "--data", str(self.data / "webhooks")]
        return self._part("receiver", [*command, "--secret", secret]), port

    def _cloud(self) -> tuple[Part, int] | None:
        folder = self.data / "cloud"
        folder.mkdir(exist_ok=True)
        pubsub, tasks, certs = free_port(), free_port(), free_port()
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        command = ["-m", "local.cloud", "--data", str(folder), "--certs-port", str(certs)]
        command += ["--tasks-port" if emulator is None else "--port", str(tasks)]
        command += ["--port", str(pubsub)] if emulator is None else ["--without-pubsub"]
        self._env["TOKEN_CERTS_URL"] = f"http://127.0.0.1:{certs}{CERTS_PATH}"
        self._env["CLOUD_TASKS_EMULATOR_HOST"] = f"127.0.0.1:{tasks}"
        self._env["PUBSUB_EMULATOR_HOST"] = emulator or f"127.0.0.1:{pubsub}"
        return self._part("cloud", command), tasks

    def _part(self, name: str, arguments: list[str], env: dict[str, str] | None = None) -> Part:
        part = Part(name, [sys.executable, *arguments], env or {}, self.data / f"{name}.log")
        self.parts[name] = part
        part.start()
        return part

    def _start_functions(self) -> None:
        self._progress("functions")
        for name in self._function_names:
            if not (self._functions / name / "main.py").is_file():
                raise PartFailedError(f"functions/{name}/main.py does not exist, but pipeline.yaml names it")
        ports = {name: self._port if name == "intake" else free_port() for name in self._function_names}
        refuse_taken(ports["intake"])
        for name, port in ports.items():
            self._env[f"URL_{name}"] = f"http://127.0.0.1:{port}"
        for name, port in ports.items():
            self._part(name, self._function_command(name, port), self._function_env(name))
        for name, port in ports.items():
            self.parts[name].wait_for_port(port)

    def _function_command(self, name: str, port: int) -> list[str]:
        source = self._functions / name / "main.py"
        arguments = ["--source", str(source), "--target", "main", "--host", "127.0.0.1", "--port", str(port)]
        return ["-m", "functions_framework", *arguments]

    def _function_env(self, name: str) -> dict[str, str]:
        shared = {key: value for key, value in self._env.items() if not key.startswith("URL_")}
        return shared | {
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PIPELINE_FILE": str(self._pipeline_file),
            "PUSH_AUDIENCE": self._url(name),
            "PUSH_ACCOUNT": SCHEDULER_ACCOUNT if name in SCHEDULED else PUSH_ACCOUNT,
            "CALLERS": '{"anonymous": ["*"]}',
            "THREADS": str(THREADS),
            "POOL_SIZE": str(THREADS),
            "PYTHONPATH": str(ROOT),
        }

    def _push_endpoints(self) -> dict[str, str]:
        """Where each function's messages are pushed: to it, or through a gateway that signs them."""
        if "--without-pubsub" not in self.parts["cloud"].command:
            return self._urls
        self._gateway = Gateway(self._urls, PUSH_ACCOUNT, Signer(self.data / "cloud"))
        self._gateway.start()
        return {name: self._gateway.url_of(name) for name in self._urls}

    def _start_scheduler(self) -> None:
        urls = [self._url(name) for name in SCHEDULED]
        self._scheduler = Scheduler(urls, self._tick, SCHEDULER_ACCOUNT, Signer(self.data / "cloud"))
        self._scheduler.start()

    def _watch(self) -> None:
        while not self._stopping.wait(WATCH_EVERY):
            for name in set(self.parts) - self.held:
                part = self.parts[name]
                # It may have been held down since this round began.
                if part.pid is None and name not in self.held and not self._revive(name, part):
                    self.failure = part.failed("has stopped")
                    return
            for server in self._servers:
                if server.pid is None:
                    self.failure = PartFailedError(f"{type(server).__name__} has stopped; its log is in {self.data}")
                    return

    def _revive(self, name: str, part: Part) -> bool:
        """Start a dead function again; whether that was possible."""
        if name not in self._function_names or part.starts > RESTARTS:
            return False
        part.start()
        return True


def refuse_taken(port: int) -> None:
    """Raise PartFailedError when something listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise PartFailedError(f"port {port} of 127.0.0.1 is in use: choose another one with --port") from None
