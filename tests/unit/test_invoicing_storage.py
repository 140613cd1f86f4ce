"""Documents in Cloud Storage, against a real fake-gcs-server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.objects import ObjectServer
from local.postgres import free_port
from shared.providers.objects import (
    ObjectConflictError,
    ObjectStore,
    StorageUnavailableError,
    StoredObject,
    connect,
    object_name,
)
from shared.providers.settings import StorageSettings

CONTENT = b"%PDF-1.4 first"
IDENTITY = ("shop", "invoice.generate", "order-1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectServer]:
    with ObjectServer(tmp_path_factory.mktemp("objects"), "documents") as server:
        yield server


@pytest.fixture
def settings(server: ObjectServer) -> StorageSettings:
    return StorageSettings(artifacts_bucket="documents", storage_emulator_host=server.url)


@pytest.fixture
def objects(settings: StorageSettings) -> ObjectStore:
    return ObjectStore(settings)


def generations(settings: StorageSettings, name: str) -> int:
    blob = connect(settings).bucket("documents").get_blob(name)
    return int(blob.generation)


def test_a_document_is_read_back_as_it_was_stored(objects: ObjectStore) -> None:
    stored = objects.put("a/read-back.pdf", CONTENT, "application/pdf")
    assert stored.size_bytes == len(CONTENT)
    assert objects.get(stored) == CONTENT


def test_a_second_write_of_the_same_content_changes_nothing(objects: ObjectStore, settings: StorageSettings) -> None:
    first = objects.put("a/same.pdf", CONTENT, "application/pdf")
    generation = generations(settings, "a/same.pdf")
    assert objects.put("a/same.pdf", CONTENT, "application/pdf") == first
    assert generations(settings, "a/same.pdf") == generation


@pytest.mark.parametrize("other", [b"%PDF-1.4 other", b"%PDF-1.4 firsT"])
def test_another_content_under_the_name_is_a_conflict_and_stays_out(objects: ObjectStore, other: bytes) -> None:
    name = f"a/other-{other.hex()}.pdf"
    stored = objects.put(name, CONTENT, "application/pdf")
    with pytest.raises(ObjectConflictError):
        objects.put(name, other, "application/pdf")
    assert objects.get(stored) == CONTENT


def test_concurrent_writes_of_one_content_all_succeed(objects: ObjectStore, settings: StorageSettings) -> None:
    results: list[StoredObject] = []
    threads = [
        threading.Thread(target=lambda: results.append(objects.put("a/race.pdf", CONTENT, "application/pdf")))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert len(set(results)) == 1


def test_a_content_that_is_not_the_recorded_one_is_not_handed_out(objects: ObjectStore) -> None:
    stored = objects.put("a/changed.pdf", CONTENT, "application/pdf")
    with pytest.raises(ObjectConflictError):
        objects.get(StoredObject(stored.object, "0" * 64, stored.size_bytes))


def test_a_missing_document_or_bucket_is_told(objects: ObjectStore, server: ObjectServer) -> None:
    with pytest.raises(StorageUnavailableError, match="NotFound"):
        objects.get(StoredObject("a/never.pdf", "0" * 64, 1))
    nowhere = ObjectStore(StorageSettings(artifacts_bucket="no-such-bucket", storage_emulator_host=server.url))
    with pytest.raises(StorageUnavailableError, match="NotFound"):
        nowhere.put("a/x.pdf", CONTENT, "application/pdf")


def test_a_server_that_is_away_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shared.providers.objects.RETRY", None)
    url = f"http://127.0.0.1:{free_port()}"
    away = ObjectStore(StorageSettings(artifacts_bucket="documents", storage_emulator_host=url))
    with pytest.raises(StorageUnavailableError, match="ConnectionError"):
        away.put("a/x.pdf", CONTENT, "application/pdf")


def test_documents_survive_a_restart_of_the_server(tmp_path: Path) -> None:
    with ObjectServer(tmp_path, "documents") as first:
        settings = StorageSettings(artifacts_bucket="documents", storage_emulator_host=first.url)
        stored = ObjectStore(settings).put("a/kept.pdf", CONTENT, "application/pdf")
    with ObjectServer(tmp_path, "documents") as second:
        settings = StorageSettings(artifacts_bucket="documents", storage_emulator_host=second.url)
        assert ObjectStore(settings).get(stored) == CONTENT


def test_a_name_comes_from_the_identity_and_not_from_the_content() -> None:
    name = object_name(IDENTITY, "invoice.pdf")
    assert name.startswith("shop/invoice.generate/")
    assert name.endswith("/invoice.pdf")
    assert object_name(IDENTITY, "invoice.pdf") == name
    others = [
        object_name(("shop", "invoice.generate", "order-2"), "invoice.pdf"),
        object_name(("other", "invoice.generate", "order-1"), "invoice.pdf"),
        object_name(IDENTITY, "report.pdf"),
    ]
    assert len({name, *others}) == 4
