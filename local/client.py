"""A client of the HTTP API, for the command line and the demonstration."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import dataclass
from typing import Any

import requests

from shared.errors import EchoproofError, UnavailableError
from shared.operations import RESTING

TIMEOUT = 40.0  # seconds; longer than the longest long poll
POLL = "20s"


class AnswerError(EchoproofError):
    """The API refused the request; `problem` is its problem+json."""

    def __init__(self, problem: dict[str, Any]) -> None:
        pointer = f" ({problem['pointer']})" if problem.get("pointer") else ""
        super().__init__(f"{problem.get('title')}: {problem.get('detail', '')}{pointer}".rstrip(": "))
        self.problem = problem


@dataclass(frozen=True)
class Submitted:
    """What the API said of a submission: the operation's id and whether this request created it."""

    operation_id: str
    new: bool
    body: dict[str, Any]


def key_of(body: bytes) -> str:
    """Return the idempotency key that a file gets when none is given: the same content, the same operation."""
    return f"file-{hashlib.sha256(body).hexdigest()[:40]}"


class Client:
    """Speaks to one intake for one tenant; used by one thread at a time."""

    def __init__(self, url: str, tenant: str, token: str | None = None) -> None:
        self._base = f"{url.rstrip('/')}/v1/tenants/{tenant}/operations"
        self._session = requests.Session()
        if token:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def submit(self, body: bytes | dict[str, Any], key: str) -> Submitted:
        """Submit an operation; raises AnswerError, or UnavailableError when there was no answer."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        answer = self._call("POST", "", data=data, headers=headers)
        found = answer.json()
        return Submitted(found["id"], answer.status_code == 202, found)

    def status(self, operation_id: str, wait: str | None = None) -> dict[str, Any]:
        """Return an operation as it stands, after waiting for it to come to rest if asked to."""
        found: dict[str, Any] = self._call("GET", f"/{operation_id}", params={"wait": wait} if wait else None).json()
        return found

    def wait(self, operation_id: str, timeout: float) -> dict[str, Any]:
        """Wait until an operation has come to rest, or the timeout (seconds) has passed; return it as it stands."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.status(operation_id, POLL if deadline - time.monotonic() > 20 else "2s")
            if found["state"] in RESTING or time.monotonic() > deadline:
                return found

    def _call(self, method: str, path: str, **options: Any) -> requests.Response:
        try:
            answer = self._session.request(method, self._base + path, timeout=TIMEOUT, **options)
        except requests.RequestException as error:
            raise UnavailableError(
                f"no answer from {self._base} ({type(error).__name__}): is the stack up? `echoproof up` starts it"
            ) from None
        if answer.status_code < 400:
            return answer
        if answer.status_code == 503:
            raise UnavailableError
        try:
            raise AnswerError(answer.json())
        except requests.JSONDecodeError:
            raise UnavailableError(f"{self._base} answered {answer.status_code} without a problem document") from None
