"""The certificates that tokens are signed with: fetched once, kept while they are good, renewed on need."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping

from shared.errors import UnauthenticatedError, UnavailableError

GOOGLE_CERTIFICATES = "https://www.googleapis.com/oauth2/v1/certs"

_SHORTEST_KEPT = 60.0  # s; also how often an unknown key may make us ask again: tokens are anybody's to invent
_LONGEST_KEPT = 86_400.0  # s; Google announces a key days before it signs with it
_FETCH_TIMEOUT = 5.0  # s; a push waits meanwhile, and is delivered again if this fails
_LARGEST = 1_000_000  # bytes; Google's are about 3,000
_MAX_AGE = re.compile(r"(?:^|[,\s])max-age=([0-9]{1,9})(?:$|[,\s])")


class Certificates:
    """The current certificates of one URL, by key id; may serve many threads.

    The URL gives a JSON object of key id → PEM. Kept for the answer's Cache-Control max-age, within a minute
    and a day. When they cannot be renewed, the old ones serve on.
    """

    def __init__(self, url: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._known: Mapping[str, str] = {}
        self._fetched_at = self._expires_at = float("-inf")

    def for_key(self, key_id: str) -> Mapping[str, str]:
        """Return the certificates, among them the one of this key.

        Asks again, at most once a minute, when they have expired or the key is not among them. Raises
        UnauthenticatedError for a key that is unknown then, UnavailableError when none could ever be had.
        """
        with self._lock:
            now = self._monotonic()
            wanted = now >= self._expires_at or key_id not in self._known
            if wanted and now >= self._fetched_at + _SHORTEST_KEPT:
                self._renew(now)
            if not self._known:
                raise UnavailableError("the certificates for tokens cannot be had")
            if key_id not in self._known:
                raise UnauthenticatedError("the token is signed with an unknown key")
            return self._known

    def _renew(self, now: float) -> None:
        import requests

        try:
            answer = requests.get(self._url, timeout=_FETCH_TIMEOUT)
            answer.raise_for_status()
            found = answer.json() if len(answer.content) <= _LARGEST else None
        except (requests.RequestException, ValueError):
            found = None
        if not isinstance(found, dict) or not all(isinstance(pem, str) for pem in found.values()):
            # With nothing to serve on with, the next caller may try at once; else once a minute is enough.
            self._fetched_at = now if self._known else self._fetched_at
            return
        age = _MAX_AGE.search(answer.headers.get("Cache-Control", ""))
        kept = min(max(float(age[1]) if age else 0.0, _SHORTEST_KEPT), _LONGEST_KEPT)
        self._known, self._fetched_at, self._expires_at = found, now, now + kept
