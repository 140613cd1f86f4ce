"""Stands for Cloud Scheduler: calls relay and reconcile at every tick, with a signed token."""

from __future__ import annotations

import logging
import threading
import time

import requests

from local.signing import Signer

TIMEOUT = 60.0  # seconds for one call; a relay tick takes 45 at most

log = logging.getLogger(__name__)


class Scheduler:
    """Calls URLs every `tick` seconds, each from a thread of its own; a call that fails is made again at the next."""

    def __init__(self, urls: list[str], tick: float, account: str, signer: Signer) -> None:
        self._tick = tick
        self._account = account
        self._signer = signer
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._call_often, args=(url,), daemon=True) for url in urls]

    def start(self) -> None:
        """Start calling."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop calling; a call under way is not waited for longer than a moment."""
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=1)

    def _call_often(self, url: str) -> None:
        while not self._stopped.wait(self._tick - time.time() % self._tick):
            token = self._signer.id_token(self._account, url)
            try:
                requests.post(url, headers={"Authorization": f"Bearer {token}"}, json={}, timeout=TIMEOUT)
            except requests.RequestException as error:
                log.debug("%s did not answer: %s", url, type(error).__name__)
