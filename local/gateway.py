"""Adds the token that another Pub/Sub emulator leaves out, so that the functions verify it as in production.

Google's emulator pushes without a token. When PUBSUB_EMULATOR_HOST names a server that is not the stack's own, its
pushes go to this gateway, which signs them for the function and passes them on.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import requests

from local.signing import Signer

TIMEOUT = 610.0  # seconds; longer than the longest ack deadline, which ends a push


class Gateway:
    """Listens on a free port of 127.0.0.1; `url_of` is where to push what a function shall get."""

    def __init__(self, urls: Mapping[str, str], account: str, signer: Signer) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(urls, account, signer))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    def start(self) -> None:
        """Start passing pushes on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url_of(self, function: str) -> str:
        """Where to push what the function shall get."""
        return f"http://127.0.0.1:{self._server.server_port}/{function}"


def _handler(urls: Mapping[str, str], account: str, signer: Signer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            url = urls.get(self.path.lstrip("/"))
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(404 if url is None else _pass_on(url, body))
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing: the function logs the delivery."""

    def _pass_on(url: str, body: bytes) -> int:
        headers = {"Authorization": f"Bearer {signer.id_token(account, url)}", "Content-Type": "application/json"}
        try:
            return requests.post(url, data=body, headers=headers, timeout=TIMEOUT).status_code
        except requests.RequestException:
            return 503

    return Handler
