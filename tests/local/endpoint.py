"""An HTTP endpoint that records what it is sent and answers as it is told."""

from __future__ import annotations

import json
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MANY = 30.0  # seconds; far longer than anything here takes on a busy machine
QUIET = (ConnectionError, ValueError)  # a caller that went away, or a socket closed at the end


@dataclass
class Received:
    """One request; `at` is monotonic, in seconds."""

    at: float
    method: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Answer:
    """What to answer: a status after `delay` seconds, with headers."""

    status: int = 200
    delay: float = 0.0
    headers: dict[str, str] = field(default_factory=dict)


class Endpoint:
    """Serves any path: each request takes the path's next answer, the last one for ever; 200 by default."""

    def __init__(self) -> None:
        self._answers: dict[str, list[Answer]] = {}
        self._received: defaultdict[str, list[Received]] = defaultdict(list)
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._concurrent: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0])
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def url(self, path: str, *answers: Answer | int) -> str:
        """Return the URL of a path that gives these answers."""
        if answers:
            self._answers[path] = [each if isinstance(each, Answer) else Answer(each) for each in answers]
        return f"http://127.0.0.1:{self._server.server_port}{path}"

    def received(self, path: str) -> list[Received]:
        with self._changed:
            return list(self._received[path])

    def peak(self, path: str) -> int:
        """Return the largest number of requests in progress at once."""
        return self._concurrent[path][1]

    def wait(self, path: str, count: int, timeout: float = MANY) -> list[Received]:
        """Return a path's requests once there are at least `count`; fails after `timeout` seconds."""
        self.until(lambda: len(self._received[path]) >= count, timeout, f"{count} requests to {path}")
        return self.received(path)

    def until(self, condition: Callable[[], bool], timeout: float, what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout), f"waited {timeout} s for {what}"

    def close(self) -> None:
        self._closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _take(self, handler: BaseHTTPRequestHandler) -> Answer:
        length = int(handler.headers.get("Content-Length", 0))
        body = handler.rfile.read(length)
        request = Received(time.monotonic(), str(handler.command), dict(handler.headers.items()), body)
        with self._changed:
            self._received[handler.path].append(request)
            counts = self._concurrent[handler.path]
            counts[0] += 1
            counts[1] = max(counts)
            self._changed.notify_all()
            answers = self._answers.get(handler.path, [Answer()])
            return answers.pop(0) if len(answers) > 1 else answers[0]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except QUIET:
                    self.close_connection = True

            def answer(self) -> None:
                answer = endpoint._take(self)
                endpoint._closing.wait(answer.delay)
                endpoint._concurrent[self.path][0] -= 1
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if answer.status >= 200 and answer.status != 204:
                    self.send_header("Content-Length", "0")
                self.end_headers()

            do_POST = do_GET = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        return Handler
