"""Object storage as a provider: against a real fake-gcs-server, and against servers that misbehave."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from google.auth import exceptions as auth_errors

from local.objects import ObjectServer
from shared.providers import Absent, Ambiguous, Confirmed, Found, NotKnown, Outcome, Rejected, objects
from shared.providers.objects import ObjectStore, StoredObject
from shared.providers.settings import StorageSettings
from shared.providers.storage import FOREVER, Storage
from tests.providers.clock import within
from tests.providers.scripted import Scripted, Visit, answer, closed_port

KEY = "0f" * 32  # unused: the object's name is the key
PDF = b"%PDF-1.4\n{}\n\x00\xff\r\n\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("objects"), "documents") as server:
        yield server


def bucket(url: str, name: str = "documents") -> Storage:
    return Storage(ObjectStore(StorageSettings(artifacts_bucket=name, storage_emulator_host=url)))


@pytest.fixture
def storage(server: ObjectServer) -> Storage:
    return bucket(server.url)


def request(name: str, content: bytes = PDF, **changes: Any) -> dict[str, Any]:
    facts = {"pages": 2, "covers": 1}
    return {"object": name, "content_type": "application/pdf", "content": content, "facts": facts, **changes}


def send(storage: Storage, name: str, content: bytes = PDF) -> Outcome:
    return storage.send(KEY, storage.encode(request(name, content)))


def stored(name: str, content: bytes = PDF) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    return {"object": name, "sha256": digest, "size_bytes": len(content), "pages": 2, "covers": 1}


CONTENTS = [b"", b"\n", b"\n\n{}", PDF, bytes(range(256)) * 4, b'{"object":"x"}\n', b"x" * 1_000_000]


@pytest.mark.parametrize("content", CONTENTS, ids=lambda content: content[:8].decode("latin-1"))
def test_any_content_is_stored_and_found_as_it_is(storage: Storage, server: ObjectServer, content: bytes) -> None:
    name = f"a/{hashlib.sha256(content).hexdigest()}"
    encoded = storage.encode(request(name, content))
    assert storage.lookup(KEY, encoded) == Absent()
    assert storage.send(KEY, encoded) == Confirmed(stored(name, content), name)
    assert storage.lookup(KEY, encoded) == Found(stored(name, content), name)
    kept = StoredObject(name, hashlib.sha256(content).hexdigest(), len(content))
    settings = StorageSettings(artifacts_bucket="documents", storage_emulator_host=server.url)
    assert ObjectStore(settings).get(kept) == content


def test_a_second_write_of_the_same_content_is_the_same_confirmation(storage: Storage) -> None:
    assert send(storage, "a/twice") == send(storage, "a/twice") == Confirmed(stored("a/twice"), "a/twice")


@pytest.mark.parametrize("other", [b"", PDF + b"\n", PDF[:-1] + b"\r", PDF.lower()])
def test_another_content_under_the_name_is_a_no_and_says_nothing_of_this_one(storage: Storage, other: bytes) -> None:
    name = f"a/other-{hashlib.sha256(other).hexdigest()}"
    send(storage, name)
    assert send(storage, name, other) == Rejected("another content is stored under this name")
    assert storage.lookup(KEY, storage.encode(request(name, other))) == NotKnown(
        "another content is stored under this name"
    )
    assert isinstance(storage.lookup(KEY, storage.encode(request(name))), Found)


def test_writers_at_once_are_all_confirmed(storage: Storage) -> None:
    outcomes: list[Outcome] = []
    threads = [threading.Thread(target=lambda: outcomes.append(send(storage, "a/race"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes == [Confirmed(stored("a/race"), "a/race")] * 6


# Bytes


def test_the_bytes_do_not_depend_on_the_order_and_the_essence_not_on_the_content(storage: Storage) -> None:
    given = request("a/b")
    encoded = storage.encode(given)
    assert storage.encode(dict(reversed(given.items()))) == encoded
    assert encoded == (b'{"content_type":"application/pdf","facts":{"covers":1,"pages":2},"object":"a/b"}\n' + PDF)
    assert storage.essence(encoded) == storage.essence(storage.encode(request("a/b", b"other"))) == b"a/b"
    assert storage.essence(storage.encode(request("a/c"))) != b"a/b"


def test_a_name_may_hold_what_the_encoding_uses(storage: Storage) -> None:
    name = 'a/\n"{ü}'
    assert storage.essence(storage.encode(request(name))) == name.encode()


# Servers that fail


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "RETRY", None)


def reasons(storage: Storage) -> tuple[str, str]:
    """Return why a send is ambiguous and a lookup not known; fails when they are anything else."""
    sent, found = send(storage, "a/secret-name"), storage.lookup(KEY, storage.encode(request("a/secret-name")))
    assert isinstance(sent, Ambiguous)
    assert isinstance(found, NotKnown)
    return sent.reason, found.reason


@pytest.mark.usefixtures("once")
def test_a_server_that_is_away_proves_nothing() -> None:
    assert reasons(bucket(f"http://127.0.0.1:{closed_port()}")) == (
        "a document was not stored (ConnectionError)", "a document was not read (ConnectionError)",
    )  # fmt: skip


@pytest.mark.usefixtures("once")
@pytest.mark.parametrize(
    "raw",
    [
        answer("500 Error", b"secret-name"), answer("503 Unavailable"), answer("403 Forbidden", b"secret-name"),
        answer("429 Too Many", b"{}"), answer("302 Found", b"", "Location: http://127.0.0.1:1/"),
        answer("200 OK", b"<html>"), b"", b"HTTP/1.1 2", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",
    ],
)  # fmt: skip
def test_an_odd_answer_proves_nothing_and_is_not_quoted(raw: bytes) -> None:
    with Scripted(lambda visit: visit.read().say(raw)) as server:
        for reason in reasons(bucket(server.url)):
            assert "secret-name" not in reason


def test_a_missing_bucket_cannot_store(server: ObjectServer) -> None:
    assert isinstance(send(bucket(server.url, "no-such-bucket"), "a/b"), Ambiguous)


@pytest.mark.usefixtures("once")
def test_a_missing_login_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise auth_errors.DefaultCredentialsError("for a/secret-name")  # type: ignore[no-untyped-call]

    monkeypatch.setattr(objects, "Client", refuse)
    storage = Storage(ObjectStore(StorageSettings(artifacts_bucket="documents")))
    assert reasons(storage) == ("a document was not reached (DefaultCredentialsError)",) * 2


@pytest.mark.parametrize(
    "script",
    [
        Visit.hang,
        lambda visit: visit.read().hang(),
        lambda visit: visit.read().drip(answer("200 OK", b"{}" * 999)),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n\r\n").drip(b"{}" * 999),
        lambda visit: visit.read().repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
@pytest.mark.usefixtures("once")
def test_a_send_and_a_lookup_end_by_the_timeout(
    script: Callable[[Visit], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Storage, "timeout", timedelta(seconds=0.4))
    with Scripted(script) as server:
        storage = bucket(server.url)
        with within(0.4):
            assert isinstance(send(storage, "a/b"), Ambiguous)
        with within(0.4):
            assert isinstance(storage.lookup(KEY, storage.encode(request("a/b"))), NotKnown)


def test_a_connection_works_again_after_one_was_cut(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = bucket(server.url)
    assert isinstance(send(storage, "a/before"), Confirmed)
    monkeypatch.setattr(Storage, "timeout", timedelta(0))
    monkeypatch.setattr(objects, "RETRY", None)
    for _ in range(3):
        send(storage, "a/cut")
    monkeypatch.undo()
    assert send(storage, "a/cut") == Confirmed(stored("a/cut"), "a/cut")


def test_it_declares_what_the_ledger_must_know() -> None:
    assert (Storage.idempotent, Storage.visibility) == (True, timedelta(0))
    assert Storage.horizon == FOREVER
