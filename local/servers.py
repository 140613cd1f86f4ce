"""The servers behind the functions: database, storage, mail, payments, webhooks, Pub/Sub and Cloud Tasks.

One whose variable is set (DATABASE_URL, STORAGE_EMULATOR_HOST, SMTP_URL, PUBSUB_EMULATOR_HOST, PAYMENTS_KEY,
WEBHOOK_URL) is used as it is and neither started nor stopped.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
from collections.abc import Callable, Mapping
from pathlib import Path

from local.objects import ObjectServer
from local.parts import Part
from local.postgres import Postgres, free_port, reachable
from local.signing import CERTS_PATH

BUCKET = "echoproof-artifacts"
DATABASE_URL_FILE = "database-url"

StartPart = Callable[[str, list[str]], Part]  # starts a process under a name, with the arguments of Python


class Servers:
    """Starts them and knows where they are: `env` holds the variables that tell the functions."""

    def __init__(self, data: Path, start_part: StartPart, payment_faults: Mapping[str, float]) -> None:
        self.env: dict[str, str] = {}
        self._data = data
        self._start_part = start_part
        self._payment_faults = dict(payment_faults)
        self._own: list[Postgres | ObjectServer] = []
        self._postgres: Postgres | None = None
        self._postgres_away = False

    @property
    def other_pubsub(self) -> bool:
        """Whether Pub/Sub is not one of these, and so pushes without tokens."""
        return "PUBSUB_EMULATOR_HOST" in os.environ

    @property
    def own_database(self) -> bool:
        """Whether the database is one of these, which trusts every login from this machine."""
        return self._postgres is not None

    @property
    def dead(self) -> str | None:
        """What has stopped by itself, if anything has; the processes started as parts are their starter's to watch."""
        away = self._postgres if self._postgres_away else None
        return next((type(one).__name__ for one in self._own if one.pid is None and one is not away), None)

    def start(self) -> None:
        """Start what is not given, all from this thread: the kernel ends a process when its starter's thread ends.

        Raises PartFailedError.
        """
        started = (self._cloud(), self._mail(), self._payments(), self._receiver())
        waits = [one for one in started if one is not None]
        self._objects()
        self._database()
        for part, port in waits:
            part.wait_for_port(port)

    def stop(self) -> None:
        """Stop database and storage; safe to call again."""
        for server in self._own:
            server.stop()
        self._own.clear()
        (self._data / DATABASE_URL_FILE).unlink(missing_ok=True)

    def stop_database(self, mode: signal.Signals = signal.SIGQUIT) -> None:
        """Take the database away until `start_database`: SIGQUIT as a crash does, SIGINT in order."""
        if self._postgres is not None:
            self._postgres_away = True
            self._postgres.stop(mode)

    def start_database(self) -> None:
        """Bring the database back where it was; raises UnavailableError."""
        if self._postgres is not None:
            self._postgres.start()
            self._postgres_away = False

    def _database(self) -> None:
        url = os.environ.get("DATABASE_URL")
        if url is None:
            server = Postgres(reachable(self._data / "postgres"))
            self._own.append(server)
            server.start()
            url, self._postgres = server.url, server
            # For an operator's command in the folder of the stack: the port is another one each time.
            (self._data / DATABASE_URL_FILE).write_text(f"{url}\n")
        self.env["DATABASE_URL"] = url

    def _objects(self) -> None:
        self.env["ARTIFACTS_BUCKET"] = os.environ.get("ARTIFACTS_BUCKET", BUCKET)
        url = os.environ.get("STORAGE_EMULATOR_HOST")
        if url is None:
            folder = self._data / "objects"
            folder.mkdir(exist_ok=True)
            server = ObjectServer(folder, BUCKET)
            self._own.append(server)
            server.start()
            url = server.url
        self.env["STORAGE_EMULATOR_HOST"] = url

    def _mail(self) -> tuple[Part, int] | None:
        self.env["MAIL_FROM"] = os.environ.get("MAIL_FROM", "billing@echoproof.example")
        if "SMTP_URL" in os.environ:
            self.env["SMTP_URL"] = os.environ["SMTP_URL"]
            return None
        smtp, http = free_port(), free_port()
        self.env |= {"SMTP_URL": f"smtp://127.0.0.1:{smtp}", "SENT_LOG_URL": f"http://127.0.0.1:{http}"}
        folder = self._data / "mail"
        command = ["-m", "local.mail", "--smtp-port", str(smtp), "--http-port", str(http), "--data", str(folder)]
        return self._start_part("mail", command), http

    def _payments(self) -> tuple[Part, int] | None:
        if "PAYMENTS_KEY" in os.environ:
            return None  # an account of one's own, which the functions read from the environment
        port = free_port()
        self.env |= {
            "PAYMENTS_URL": f"http://127.0.0.1:{port}",
            "PAYMENTS_KEY": "sk_test_local",
            "PAYMENTS_VISIBILITY": "1s",
            "PAYMENTS_TIMEOUT": "5s",
        }
        command = ["-m", "local.payments", "--port", str(port), "--data", str(self._data / "payments")]
        return self._start_part("payments", [*command, "--rates", json.dumps(self._payment_faults)]), port

    def _receiver(self) -> tuple[Part, int] | None:
        if "WEBHOOK_URL" in os.environ:
            return None
        port, secret = free_port(), f"whsec_{base64.b64encode(secrets.token_bytes(24)).decode()}"
        self.env |= {"WEBHOOK_URL": f"http://127.0.0.1:{port}/webhooks", "WEBHOOK_SECRET": secret}
        command = ["-m", "local.receiver", "--port", str(port), "--data", str(self._data / "webhooks")]
        return self._start_part("receiver", [*command, "--secret", secret]), port

    def _cloud(self) -> tuple[Part, int] | None:
        folder = self._data / "cloud"
        folder.mkdir(exist_ok=True)
        pubsub, tasks, certs = free_port(), free_port(), free_port()
        emulator = os.environ.get("PUBSUB_EMULATOR_HOST")
        command = ["-m", "local.cloud", "--data", str(folder), "--certs-port", str(certs)]
        command += ["--tasks-port" if emulator is None else "--port", str(tasks)]
        command += ["--port", str(pubsub)] if emulator is None else ["--without-pubsub"]
        self.env["TOKEN_CERTS_URL"] = f"http://127.0.0.1:{certs}{CERTS_PATH}"
        self.env["CLOUD_TASKS_EMULATOR_HOST"] = f"127.0.0.1:{tasks}"
        self.env["PUBSUB_EMULATOR_HOST"] = emulator or f"127.0.0.1:{pubsub}"
        return self._start_part("cloud", command), tasks
