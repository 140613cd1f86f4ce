"""An append-only journal of named values: what the embedded servers have accepted, safe from SIGKILL.

A record is one put or one drop of a key. It is handed to the operating system before the call returns, so it
outlives the process at any instant. It is not flushed to the disk: a crash of the machine may lose the last
seconds, which is good enough for a development server and much faster.
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shared.errors import ConflictError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

HEADER = struct.Struct("<III")  # CRC-32 of the rest, length of the key, length of the value
DROPPED = 0xFFFFFFFF  # as a value's length: the key is gone
COMPACT_ABOVE = 16 * 1024 * 1024  # bytes; below, rewriting costs more than the space is worth


class JournalInUseError(ConflictError):
    """Another process has opened this data folder."""


class Journal:
    """A mapping from text keys to bytes that survives the death of its process.

    With `path` None it lives in memory only. A torn last record (the process died in the middle of a write)
    is cut off when the file is opened again. Raises JournalInUseError when the file is open elsewhere, and
    OSError when the disk is full; the failed call then has changed nothing.
    """

    def __init__(self, path: Path | None) -> None:
        self._path: Final = path
        self._live: dict[str, bytes] = {}
        self._size = self._live_size = 0
        self._file = self._lock = -1
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = _locked(path.with_suffix(".lock"))
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            self._load(path.read_bytes())

    def items(self, prefix: str) -> Iterator[tuple[str, bytes]]:
        """Yield every live (key, value) whose key starts with `prefix`, in the order of the last writing."""
        return ((key, value) for key, value in list(self._live.items()) if key.startswith(prefix))

    def write(self, puts: Iterable[tuple[str, bytes]] = (), drops: Iterable[str] = ()) -> None:
        """Put some values and drop some keys of earlier writes, as one append; unknown keys are skipped."""
        puts, drops = list(puts), [key for key in drops if key in self._live]
        if self._path is not None:
            self._append(b"".join([_record(key, value) for key, value in puts] + [_gone(key) for key in drops]))
        for key, value in puts:
            self._forget(key)
            self._live[key] = value
            self._live_size += HEADER.size + len(key) + len(value)
        for key in drops:
            self._forget(key)
        if self._size > COMPACT_ABOVE and self._size > 2 * self._live_size:
            self._compact()

    def close(self) -> None:
        """Close the file and let another process open it."""
        for descriptor in (self._file, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._lock = -1

    def _forget(self, key: str) -> None:
        old = self._live.pop(key, None)
        if old is not None:
            self._live_size -= HEADER.size + len(key) + len(old)

    def _append(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._file, view) :]
        except OSError:
            os.ftruncate(self._file, self._size)  # no half record may stand before a later whole one
            raise
        self._size += len(data)

    def _load(self, data: bytes) -> None:
        for key, value, end in _records(data):
            self._forget(key)
            if value is not None:
                self._live[key] = value
                self._live_size += HEADER.size + len(key) + len(value)
            self._size = end
        os.ftruncate(self._file, self._size)

    def _compact(self) -> None:
        """Write the live values to a new file and put it in the old one's place, atomically."""
        if self._path is None:
            return
        fresh = self._path.with_suffix(".new")
        data = b"".join(_record(key, value) for key, value in self._live.items())
        fresh.write_bytes(data)
        fresh.chmod(0o600)
        fresh.replace(self._path)
        os.close(self._file)
        self._file = os.open(self._path, os.O_RDWR | os.O_APPEND)
        self._size = self._live_size = len(data)


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # let go by the kernel when the process dies
    except BlockingIOError:
        os.close(descriptor)
        raise JournalInUseError from None
    return descriptor


def _record(key: str, value: bytes) -> bytes:
    name = key.encode()
    return _sealed(struct.pack("<II", len(name), len(value)) + name + value)


def _gone(key: str) -> bytes:
    name = key.encode()
    return _sealed(struct.pack("<II", len(name), DROPPED) + name)


def _sealed(body: bytes) -> bytes:
    return struct.pack("<I", zlib.crc32(body)) + body


def _records(data: bytes) -> Iterator[tuple[str, bytes | None, int]]:
    """Yield (key, value or None when dropped, offset after the record) up to the first broken record."""
    at = 0
    while at + HEADER.size <= len(data):
        checksum, key_length, length = HEADER.unpack_from(data, at)
        start = at + HEADER.size
        middle = start + key_length
        end = middle + (0 if length == DROPPED else length)
        if end > len(data) or zlib.crc32(data[at + 4 : end]) != checksum:
            return
        yield data[start:middle].decode(), None if length == DROPPED else data[middle:end], end
        at = end
