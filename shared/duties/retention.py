"""Retention: records of operations that finished long ago go, and much later their identities.

What the operations left behind (invoices, documents, messages) has no part in it: accounts are kept for years.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from shared.duties import Moved
from shared.outbox import Outbox
from shared.pipeline import Pipeline


def batches(outbox: Outbox, pipeline: Pipeline, batch: int) -> Iterator[Moved]:
    """Remove what pipeline.yaml no longer keeps, oldest first: `pruned` operations, `forgotten` identities.

    Nothing goes under an open effect, an outbox row or an open review row. A late request for a pruned operation is
    still recognised by its identity.
    """
    kept = pipeline.retention
    if kept is None:
        return
    pruned = batch
    while pruned == batch:
        pruned = outbox.database.run("prune_operations", batch=batch, kept=kept.operations.total_seconds())[0].pruned
        yield {"pruned": pruned}
    after = kept.identities - kept.operations
    which: dict[str, Any] = {"kept": kept.identities.total_seconds(), "kept_after": after.total_seconds()}
    pruned = batch
    while pruned == batch:
        pruned = outbox.database.run("prune_identities", batch=batch, **which)[0].pruned
        yield {"forgotten": pruned}
