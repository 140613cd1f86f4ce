"""The documents that an operation makes: stored as effects, then recorded as complete with their step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.invoicing.context import Result, StepContext
from shared.providers.objects import ObjectStore, StoredObject, object_name
from shared.providers.storage import Storage

CONTENT_TYPES = {"pdf": "application/pdf", "csv": "text/csv; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Document:
    """A document that has been made but not stored; `pages` is None for a CSV, `covers` so many invoices."""

    name: str
    content: bytes
    covers: int
    pages: int | None = None


def store(ctx: StepContext, storage: Storage, documents: Sequence[Document]) -> dict[str, Any]:
    """Store documents, record them in the settling transaction, and return their rows by name.

    A document that an earlier attempt intended is stored as that attempt made it.
    """
    stored = [ctx.effect(document.name, storage, _request(ctx, document)) for document in documents]
    rows = ctx.transaction().run(
        "record_artifacts",
        operation_id=ctx.operation_id,
        tenant=ctx.tenant,
        documents=stored[0]["covers"],
        names=[document.name for document in documents],
        objects=[item["object"] for item in stored],
        sha256s=[item["sha256"] for item in stored],
        sizes=[item["size_bytes"] for item in stored],
        pages=[item["pages"] for item in stored],
    )
    return {row.name: row for row in rows}


def read(ctx: StepContext, objects: ObjectStore) -> dict[str, bytes]:
    """Read back every document that this operation has recorded, by name, each checked by its SHA-256."""
    rows = ctx.database.run("artifacts_of_operation", operation_id=ctx.operation_id, tenant=ctx.tenant)
    return {row.name: objects.get(StoredObject(row.object, row.sha256, row.size_bytes)) for row in rows}


def pdf_result(row: Any) -> Result:
    """Describe a recorded PDF as a step's result."""
    return {"object": row.object, "sha256": row.sha256, "pages": row.pages}


def _request(ctx: StepContext, document: Document) -> dict[str, Any]:
    return {
        "object": object_name((ctx.tenant, ctx.type, ctx.key), document.name),
        "content_type": CONTENT_TYPES[document.name.rpartition(".")[2]],
        "content": document.content,
        "facts": {"pages": document.pages, "covers": document.covers},
    }
