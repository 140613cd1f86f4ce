"""Documents in Cloud Storage, written so that a second write of the same content is harmless."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
from google.api_core import exceptions as api_errors
from google.auth import exceptions as auth_errors
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from google.cloud.storage.retry import DEFAULT_RETRY
from requests.exceptions import RequestException

from shared.errors import PermanentError, UnavailableError
from shared.providers.cutting import CuttableAdapter
from shared.providers.settings import StorageSettings

TIMEOUT = (3.05, 8)  # seconds to connect, and between two bytes; a document is well below a megabyte
RETRY = DEFAULT_RETRY.with_timeout(8)  # seconds; a longer outage is for the step's own attempts


class ObjectConflictError(PermanentError):
    """Another content is stored under this document's name already."""


class StorageUnavailableError(UnavailableError):
    """Cloud Storage did not answer as it should."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A stored document; `sha256` is in hexadecimal."""

    object: str
    sha256: str
    size_bytes: int


class ObjectStore:
    """One bucket, through the real client; a client for each thread, made when first used."""

    def __init__(self, settings: StorageSettings) -> None:
        self._settings = settings
        self._local = threading.local()

    @classmethod
    def from_environment(cls) -> ObjectStore:
        """Open the bucket that the environment names; raises ConfigError."""
        return cls(StorageSettings.from_environment())

    def put(self, name: str, content: bytes, content_type: str) -> StoredObject:
        """Store a content under a name that nothing else has.

        The write asks for generation 0, so it never replaces anything. When the name is taken, by an earlier
        attempt whose answer was lost for instance, and holds the same content, that is the success asked for.
        Raises ObjectConflictError when it holds another, StorageUnavailableError when no answer came.
        """
        with _telling("stored"):
            blob = self._bucket().blob(name)
            try:
                blob.upload_from_string(
                    content, content_type, if_generation_match=0, timeout=TIMEOUT, retry=RETRY, checksum="auto"
                )
            except api_errors.PreconditionFailed:
                self._confirm(blob, content)
        return StoredObject(name, hashlib.sha256(content).hexdigest(), len(content))

    def get(self, stored: StoredObject) -> bytes:
        """Read a stored document; raises ObjectConflictError when its SHA-256 is not the recorded one."""
        with _telling("read"):
            content: bytes = self._bucket().blob(stored.object).download_as_bytes(timeout=TIMEOUT, retry=RETRY)
        if hashlib.sha256(content).hexdigest() != stored.sha256:
            raise ObjectConflictError("a stored document is not the one that was recorded")
        return content

    def holds(self, name: str, content: bytes) -> bool:
        """Tell whether this content is stored under the name; raises as `put` does."""
        with _telling("read"):
            blob = self._bucket().blob(name)
            if not blob.exists(timeout=TIMEOUT, retry=RETRY):
                return False
            self._confirm(blob, content)
        return True

    @contextlib.contextmanager
    def within(self, seconds: float) -> Iterator[None]:
        """Bound what this thread does here, all of it together."""
        with _telling("reached"):
            self._bucket()
        adapter: CuttableAdapter = self._local.adapter
        with adapter.within(seconds):
            yield

    def _confirm(self, blob: Any, content: bytes) -> None:
        """Check that what is stored is this content, by size, CRC32C and, where the server has it, MD5."""
        blob.reload(timeout=TIMEOUT, retry=RETRY)
        crc32c = google_crc32c.value(content).to_bytes(4, "big")
        md5 = hashlib.md5(content, usedforsecurity=False).digest()
        same = blob.size == len(content) and blob.crc32c == _base64(crc32c)
        if not same or blob.md5_hash not in (None, _base64(md5)):
            raise ObjectConflictError

    def _bucket(self) -> Any:
        if not hasattr(self._local, "bucket"):
            client, self._local.adapter = connect(self._settings), CuttableAdapter()
            for scheme in ("http://", "https://"):
                client._http.mount(scheme, self._local.adapter)
            self._local.bucket = client.bucket(self._settings.artifacts_bucket)
        return self._local.bucket


@contextlib.contextmanager
def _telling(done: str) -> Iterator[None]:
    """Translate what the client raises; its texts quote names and answers."""
    try:
        yield
    except (api_errors.GoogleAPIError, auth_errors.GoogleAuthError, RequestException, OSError) as error:
        raise StorageUnavailableError(f"a document was not {done} ({type(error).__name__})") from None


def connect(settings: StorageSettings) -> Any:
    """Return a storage client: of the emulator, which asks for no identity, or of Cloud Storage."""
    if settings.storage_emulator_host:
        return Client(
            project="local",
            credentials=AnonymousCredentials(),  # type: ignore[no-untyped-call]
            client_options={"api_endpoint": settings.storage_emulator_host},
        )
    return Client()


def object_name(identity: Sequence[str], name: str) -> str:
    """Name a document: tenant, type, a hash of the whole identity, and its own name.

    The identity, not the operation's random id: after a restore the same request finds its own documents. The
    content is no part of it: what is stored is what the ledger holds, whichever release sends it.
    """
    tenant, kind, _ = identity
    who = hashlib.sha256("\0".join(identity).encode()).hexdigest()[:32]
    return f"{tenant}/{kind}/{who}/{name}"


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()
