"""Objects in Cloud Storage: idempotent by name, because a write asks for generation 0 and never replaces anything."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from shared import ijson
from shared.providers import Absent, Ambiguous, Confirmed, Found, Lookup, NotKnown, Outcome, Rejected
from shared.providers.objects import ObjectConflictError, ObjectStore, StorageUnavailableError, StoredObject

SEPARATOR = b"\n"
FOREVER = timedelta(days=3650)  # a name stays taken as long as its object is kept


class Storage:
    """One bucket. The content is a part of the request, so a later attempt stores what the first one made."""

    name = "storage"
    idempotent = True
    horizon = FOREVER
    visibility: timedelta | None = timedelta(0)  # strongly consistent ("Cloud Storage consistency")
    timeout = timedelta(seconds=40)  # twice RETRY's eight seconds and a last try's eleven, in objects.py

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    @classmethod
    def from_environment(cls) -> Storage:
        """Open the bucket that the environment names; raises ConfigError."""
        return cls(ObjectStore.from_environment())

    def encode(self, request: dict[str, Any]) -> bytes:
        """Write `object`, `content_type`, `facts` as a line of JSON, and `content` behind it."""
        head = {name: value for name, value in request.items() if name != "content"}
        content: bytes = request["content"]
        return ijson.canonical(head) + SEPARATOR + content

    def essence(self, request: bytes) -> bytes:
        """Return the object's name."""
        return str(_head(request)["object"]).encode()

    def send(self, key: str, request: bytes) -> Outcome:  # noqa: ARG002 - the object's name is the key
        """Store the object unless it is stored already; a different content under its name is a conflict."""
        head, content = _head(request), request.split(SEPARATOR, 1)[1]
        try:
            with self._store.within(self.timeout.total_seconds()):
                stored = self._store.put(head["object"], content, head["content_type"])
        except ObjectConflictError:
            return Rejected("another content is stored under this name")
        except StorageUnavailableError as error:
            return Ambiguous(str(error))
        return Confirmed({**asdict(stored), **head["facts"]}, stored.object)

    def lookup(self, key: str, request: bytes) -> Lookup:  # noqa: ARG002 - the object's name is the key
        """Ask whether the object is there with this content."""
        head, content = _head(request), request.split(SEPARATOR, 1)[1]
        try:
            with self._store.within(self.timeout.total_seconds()):
                there = self._store.holds(head["object"], content)
        except ObjectConflictError:
            return NotKnown("another content is stored under this name")
        except StorageUnavailableError as error:
            return NotKnown(str(error))
        if not there:
            return Absent()
        stored = StoredObject(head["object"], hashlib.sha256(content).hexdigest(), len(content))
        return Found({**asdict(stored), **head["facts"]}, stored.object)


def _head(request: bytes) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(request.split(SEPARATOR, 1)[0])
    return head
