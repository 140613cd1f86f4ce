"""A mail server that delivers nothing and forgets nothing, with a log that can be asked.

Every message that it accepts is in a file before the sender gets "250 OK", so that what was
acknowledged survives a kill. Receptions are counted, never merged: the log shows whether an e-mail arrived
once or twice.

    GET /messages        {"count": receptions, "messages": [MESSAGE, …]}, 1,000 from the ?start=0-th
    GET /messages/{id}   200 MESSAGE, or 404 {"id", "received": 0}
    MESSAGE              {"id", "received", "recipients", "subject", "attachments": [{"name", "sha256"}, …]}
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from aiohttp import web
from aiosmtpd.smtp import SMTP

from local.maillog import MailLog

HOST = "127.0.0.1"
MAX_MESSAGE = 25_000_000  # bytes, as common mail providers; a PDF of 5,000 lines is half a megabyte
PAGE = 1_000  # messages that one listing shows

Fault = Callable[[str, int], str | None]


class MailSink:
    """Both servers in one event loop of its own thread; a context manager.

    Port 0 takes a free port; `smtp_port` and `http_port` are set by `start`. `fault`, for tests, is called
    after a message is logged with its Message-ID and how often it has been received; "drop" closes the
    connection without an answer, and any other text is answered in place of the 250.
    """

    def __init__(self, data: Path, smtp_port: int = 0, http_port: int = 0, fault: Fault | None = None) -> None:
        self.smtp_port = smtp_port
        self.http_port = http_port
        self.log = MailLog(data)
        self._fault = fault
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="mail-sink")
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def smtp_url(self) -> str:
        """What SMTP_URL must be to send to it."""
        return f"smtp://{HOST}:{self.smtp_port}"

    @property
    def sent_log_url(self) -> str:
        """What SENT_LOG_URL must be to ask it."""
        return f"http://{HOST}:{self.http_port}"

    def start(self) -> MailSink:
        """Listen on both ports; raises OSError when one is taken."""
        self._thread.start()
        self._started.wait()
        if self._failure:
            self._thread.join()
            raise self._failure
        return self

    def stop(self) -> None:
        """Close both servers; what was acknowledged is kept."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def __enter__(self) -> MailSink:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._serve())
        except BaseException as error:  # noqa: BLE001 - handed to the thread that started this one
            self._failure = error
        finally:
            self._loop.close()
            self._started.set()

    async def _serve(self) -> None:
        runner = web.AppRunner(self._application(), access_log=None, shutdown_timeout=1)
        sessions: set[SMTP] = set()
        try:
            await runner.setup()
            site = web.TCPSite(runner, HOST, self.http_port)
            await site.start()
            smtp = await self._loop.create_server(lambda: self._session(sessions), HOST, self.smtp_port)
            self.http_port = runner.addresses[0][1]
            self.smtp_port = smtp.sockets[0].getsockname()[1]
            self._started.set()
            await self._stop.wait()
            smtp.close()
            _abort(sessions)
        finally:
            await runner.cleanup()

    def _session(self, sessions: set[SMTP]) -> SMTP:
        session = SMTP(self, hostname="localhost", data_size_limit=MAX_MESSAGE, enable_SMTPUTF8=True, loop=self._loop)
        sessions.add(session)
        return session

    async def handle_DATA(self, server: SMTP, session: Any, envelope: Any) -> str:  # noqa: ARG002, N802
        """Log a message, then accept it."""
        identifier, received = self.log.add(envelope.rcpt_tos, envelope.content)
        fault = self._fault(identifier, received) if self._fault else None
        if fault == "drop":
            _abort([server])
        return fault or "250 OK"

    def _application(self) -> web.Application:
        application = web.Application()
        application.router.add_get("/messages", self._list)
        application.router.add_get("/messages/{id}", self._show)
        return application

    async def _list(self, request: web.Request) -> web.Response:
        start = request.query.get("start", "0")
        if not start.isdecimal():
            raise web.HTTPBadRequest(text="start must be a number")
        return web.json_response({"count": self.log.count(), "messages": self.log.messages(int(start), PAGE)})

    async def _show(self, request: web.Request) -> web.Response:
        identifier = request.match_info["id"].strip("<>")
        found = self.log.find(identifier)
        return web.json_response(found or {"id": identifier, "received": 0}, status=200 if found else 404)


def _abort(sessions: Iterable[SMTP]) -> None:
    """Close connections at once, whatever the client is doing."""
    for session in sessions:
        if isinstance(session.transport, asyncio.Transport):
            session.transport.abort()


def main(arguments: list[str] | None = None) -> int:
    """Run the sink until SIGTERM or SIGINT; one line of JSON with its URLs when it is ready."""
    parser = argparse.ArgumentParser(prog="python -m local.mail", description="A mail server that keeps everything.")
    parser.add_argument("--smtp-port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--http-port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--data", type=Path, required=True, help="folder of the log; kept and extended")
    options = parser.parse_args(arguments)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    try:
        with MailSink(options.data, options.smtp_port, options.http_port) as sink:
            ready = {"smtp": sink.smtp_url, "sent_log": sink.sent_log_url}
            sys.stdout.write(json.dumps(ready) + "\n")
            sys.stdout.flush()
            stop.wait()
    except OSError as error:
        sys.stderr.write(f"mail sink: {error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
