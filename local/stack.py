"""The whole pipeline on one machine: every function its own functions-framework process, real servers behind them.

A function that dies is started again, as Cloud Run would; a server that dies ends the stack.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from local import topology
from local.gateway import Gateway
from local.logins import make_logins
from local.parts import Part, PartFailedError
from local.postgres import free_port
from local.scheduler import Scheduler
from local.servers import Servers
from local.signing import Signer
from shared.database import connector
from shared.migrate import migrate
from shared.pipeline import Pipeline

ROOT = Path(__file__).resolve().parent.parent
PROJECT = "echoproof-local"
PUSH_ACCOUNT = f"push@{PROJECT}.iam.gserviceaccount.com"
SCHEDULER_ACCOUNT = f"scheduler@{PROJECT}.iam.gserviceaccount.com"
TASKS_ACCOUNT = f"tasks@{PROJECT}.iam.gserviceaccount.com"
LOCATION = "europe-west2"
SCHEDULED = ("relay", "reconcile")
PLUMBING = ("intake", "relay", "reconcile", "dead_letter", "console")
ADDRESSES_FILE = "addresses.json"  # where each function listens, for `echoproof smoke --local`
TICK = 2.0  # seconds between calls of relay and reconcile; a minute in the cloud
THREADS = 4  # requests that one function process serves at once
RESTARTS = 20  # of one function within a stack's life, beyond which something is wrong with it
WATCH_EVERY = 0.1  # seconds

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Addresses:
    """Where the parts listen."""

    intake: str
    console: str
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
        console_port: int | None = None,
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
        self._ports = {"intake": port} | ({"console": console_port} if console_port else {})
        self._tick = tick
        self._progress = progress
        self._servers = Servers(data, self._part, payment_faults or {})
        self._urls: dict[str, str] = {}
        self._database_urls: dict[str, str] = {}
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
        env = self._servers.env
        receiver = env["WEBHOOK_URL"].rpartition("/")[0] if "receiver" in self.parts else None
        return Addresses(
            self._url("intake"),
            self._url("console"),
            env["DATABASE_URL"],
            env.get("SENT_LOG_URL"),
            env.get("PAYMENTS_URL"),
            receiver,
        )

    @property
    def pubsub(self) -> str:
        """Address of Pub/Sub, host:port."""
        return self._servers.env["PUBSUB_EMULATOR_HOST"]

    @property
    def objects_url(self) -> str:
        """URL of the object storage."""
        return self._servers.env["STORAGE_EMULATOR_HOST"]

    def start(self) -> None:
        """Start everything and return when all of it answers; raises PartFailedError, with nothing left behind."""
        try:
            self.data.mkdir(parents=True, exist_ok=True)
            self._start_servers()
            self._start_functions()
            self._create_topology()
            self._start_scheduler()
            self._watcher.start()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything that was started; safe to call again."""
        self._stopping.set()
        (self.data / ADDRESSES_FILE).unlink(missing_ok=True)
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
        self._servers.stop()

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

    def stop_database(self) -> None:
        """Crash the database (an immediate shutdown) and keep it away until `start_database`."""
        self._servers.stop_database()

    def start_database(self) -> None:
        """Start the database again where it was."""
        self._servers.start_database()

    @property
    def _function_names(self) -> tuple[str, ...]:
        return (*PLUMBING, *self.pipeline.functions)

    def _url(self, name: str) -> str:
        return self._urls[name]

    def _start_servers(self) -> None:
        self._progress("servers")
        self._servers.start()
        self._progress("migrations")
        url = self._servers.env["DATABASE_URL"]
        migrate(connector(url))
        if self._servers.own_database:
            self._database_urls = make_logins(url, self.pipeline)

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
        ports = {name: self._ports.get(name) or free_port() for name in self._function_names}
        for name, option in (("intake", "--port"), ("console", "--console-port")):
            refuse_taken(ports[name], option)
        self._urls = {name: f"http://127.0.0.1:{port}" for name, port in ports.items()}
        (self.data / ADDRESSES_FILE).write_text(json.dumps(self._urls))
        for name, port in ports.items():
            self._part(name, self._function_command(name, port), self._function_env(name))
        for name, port in ports.items():
            self.parts[name].wait_for_port(port)

    def _function_command(self, name: str, port: int) -> list[str]:
        source = self._functions / name / "main.py"
        arguments = ["--source", str(source), "--target", "main", "--host", "127.0.0.1", "--port", str(port)]
        return ["-m", "functions_framework", *arguments]

    def _function_env(self, name: str) -> dict[str, str]:
        return self._servers.env | {
            "DATABASE_URL": self._database_urls.get(name, self._servers.env["DATABASE_URL"]),
            "GOOGLE_CLOUD_PROJECT": PROJECT,
            "PIPELINE_FILE": str(self._pipeline_file),
            "PUSH_AUDIENCE": self._url(name),
            "PUSH_ACCOUNT": SCHEDULER_ACCOUNT if name in SCHEDULED else f"{PUSH_ACCOUNT},{TASKS_ACCOUNT}",
            "TASKS_LOCATION": LOCATION,
            "TASKS_ACCOUNT": TASKS_ACCOUNT,
            "STEP_URLS": json.dumps({function: self._url(function) for function in self.pipeline.functions}),
            "CALLERS": '{"anonymous": ["*"]}',
            "CONSOLE_LOCAL_USER": local_user(),
            "SHUTDOWN_GRACE": os.environ.get("SHUTDOWN_GRACE", "1s"),  # somebody waits for the stack's end
            "THREADS": str(THREADS),
            "POOL_SIZE": str(THREADS),
            "PYTHONPATH": str(ROOT),
        }

    def _create_topology(self) -> None:
        env = self._servers.env
        topology.create(self.pipeline, PROJECT, env["PUBSUB_EMULATOR_HOST"], self._push_endpoints(), PUSH_ACCOUNT)
        topology.create_queues(self.pipeline, PROJECT, LOCATION, env["CLOUD_TASKS_EMULATOR_HOST"])

    def _push_endpoints(self) -> dict[str, str]:
        """Where each function's messages are pushed: to it, or through a gateway that signs them."""
        if not self._servers.other_pubsub:
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
                    self.failure = part.failed("has stopped, and with it the stack")
                    return
            if self._servers.dead is not None:
                what = f"{self._servers.dead} has stopped, and with it the stack"
                self.failure = PartFailedError(f"{what}; its log is in {self.data}")
                return

    def _revive(self, name: str, part: Part) -> bool:
        """Start a dead function again; whether that was possible."""
        if name not in self._function_names or part.starts > RESTARTS:
            return False
        part.start()
        return True


def local_user() -> str:
    """Return the user of this shell, as whom the console acts on this machine."""
    name = "".join(character for character in getpass.getuser() if "!" <= character <= "~")
    return name[:100] or "local"


def refuse_taken(port: int, option: str = "--port") -> None:
    """Raise PartFailedError when something listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            raise PartFailedError(f"port {port} of 127.0.0.1 is in use: choose another one with {option}") from None
