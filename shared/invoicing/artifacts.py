"""The documents that an operation makes: stored, then recorded as complete with their step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.invoicing.context import Result, StepContext
from shared.invoicing.storage import ObjectStore, StoredObject, object_name

CONTENT_TYPES = {"pdf": "application/pdf", "csv": "text/csv; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Document:
    """A document that has been made but not stored; `pages` is None for a CSV."""

    name: str
    content: bytes
    pages: int | None = None


def recorded(ctx: StepContext) -> dict[str, Any]:
    """Return the rows of the documents that this operation has recorded, by name."""
    rows = ctx.database.run("artifacts_of_operation", operation_id=ctx.operation_id, tenant=ctx.tenant)
    return {row.name: row for row in rows}


def store(ctx: StepContext, objects: ObjectStore, documents: Sequence[Document]) -> list[StoredObject]:
    """Store documents under names that come from the operation's identity and their content."""
    identity = (ctx.tenant, ctx.type, ctx.key)
    return [
        objects.put(
            object_name(identity, document.name, document.content),
            document.content,
            CONTENT_TYPES[document.name.rpartition(".")[2]],
        )
        for document in documents
    ]


def record(
    ctx: StepContext, documents: Sequence[Document], stored: Sequence[StoredObject], covers: int
) -> dict[str, Any]:
    """Record stored documents, which cover so many invoices and credit notes, in the settling transaction."""
    rows = ctx.transaction().run(
        "record_artifacts",
        operation_id=ctx.operation_id,
        tenant=ctx.tenant,
        documents=covers,
        names=[document.name for document in documents],
        objects=[item.object for item in stored],
        sha256s=[item.sha256 for item in stored],
        sizes=[item.size_bytes for item in stored],
        pages=[document.pages for document in documents],
    )
    return {row.name: row for row in rows}


def read(ctx: StepContext, objects: ObjectStore) -> dict[str, bytes]:
    """Read back every document that this operation has recorded, by name, each checked by its SHA-256."""
    return {
        name: objects.get(StoredObject(row.object, row.sha256, row.size_bytes)) for name, row in recorded(ctx).items()
    }


def pdf_result(row: Any) -> Result:
    """Describe a recorded PDF as a step's result."""
    return {"object": row.object, "sha256": row.sha256, "pages": row.pages}
