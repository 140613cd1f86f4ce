"""The mail sink's memory: every reception of every message, a file each."""

from __future__ import annotations

import hashlib
import threading
from collections import defaultdict
from dataclasses import dataclass
from email import message_from_bytes, policy
from email.message import EmailMessage
from pathlib import Path
from typing import Any

ENVELOPE = "X-Envelope-To"  # the header put before a message in its file: who it was really for


@dataclass(frozen=True, slots=True)
class Reception:
    """One acceptance of a message."""

    id: str
    recipients: list[str]
    subject: str
    attachments: list[dict[str, str]]


class MailLog:
    """All receptions, in the order of their arrival, in a folder of .eml files; safe to use from several threads.

    A file appears whole, by a rename, before `add` returns: that survives a kill of the process (not a power
    cut, which would take an fsync a message). Opening a folder again continues its log.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._lock = threading.Lock()
        self._receptions: list[Reception] = []
        self._by_id: defaultdict[str, list[int]] = defaultdict(list)
        for path in sorted(folder.glob("*.eml")):
            self._index(path.read_bytes())

    def add(self, recipients: list[str], content: bytes) -> tuple[str, int]:
        """Keep one reception; return the message's id and how often it has been received by now.

        The id is the Message-ID without angle brackets, or the content's hash when there is none.
        """
        stored = f"{ENVELOPE}: {', '.join(recipients)}\r\n".encode() + content
        with self._lock:
            path = self._path(len(self._receptions))
            partial = path.with_suffix(".partial")
            partial.write_bytes(stored)
            partial.replace(path)
            identifier = self._index(stored)
            return identifier, len(self._by_id[identifier])

    def count(self) -> int:
        """Return the number of receptions, repeated ones included."""
        return len(self._receptions)

    def messages(self, start: int, limit: int) -> list[dict[str, Any]]:
        """Return up to `limit` messages from the `start`-th in order of first reception, and how often each came."""
        with self._lock:
            return [self._summary(identifier) for identifier in list(self._by_id)[start : start + limit]]

    def find(self, identifier: str) -> dict[str, Any] | None:
        """Return one message with its attachments' names and hashes, or None when it was never received."""
        with self._lock:
            return self._summary(identifier) if identifier in self._by_id else None

    def contents(self, identifier: str) -> list[bytes]:
        """Return the bytes of each reception of a message, as they were sent."""
        with self._lock:
            numbers = list(self._by_id.get(identifier, ()))
        return [self._path(number).read_bytes().partition(b"\r\n")[2] for number in numbers]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number + 1:06d}.eml"

    def _index(self, stored: bytes) -> str:
        message = message_from_bytes(stored, policy=policy.default)
        identifier = str(message["Message-ID"] or "").strip().strip("<>")
        identifier = identifier or f"sha256:{hashlib.sha256(stored).hexdigest()}"
        self._by_id[identifier].append(len(self._receptions))
        recipients = str(message[ENVELOPE]).split(", ")
        attachments = [_attachment(part) for part in message.iter_attachments()]
        self._receptions.append(Reception(identifier, recipients, str(message["Subject"] or ""), attachments))
        return identifier

    def _summary(self, identifier: str) -> dict[str, Any]:
        numbers = self._by_id[identifier]
        first = self._receptions[numbers[0]]
        return {
            "id": identifier,
            "received": len(numbers),
            "recipients": first.recipients,
            "subject": first.subject,
            "attachments": first.attachments,
        }


def _attachment(part: EmailMessage) -> dict[str, str]:
    payload = part.get_payload(decode=True)
    content = payload if isinstance(payload, bytes) else b""
    return {"name": part.get_filename() or "", "sha256": hashlib.sha256(content).hexdigest()}
