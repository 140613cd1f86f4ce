"""Admission: which accepted operations may start, in the order of their keys and as far as their tenant has room.

An operation that may not start yet has no outbox row; it waits in the database. Whoever makes room (an end, a cancel)
or needs it (an acceptance) calls `admit`, a shortcut that may fail without harm; reconcile calls it for every tenant
with something waiting, and is the guarantee. See docs/decisions/0009.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from typing import Any

from shared.database import Transaction
from shared.duties import Moved
from shared.errors import EchoproofError
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch

BATCH = 100  # operations a transaction: their locks are held for milliseconds
ROUNDS = 20  # transactions a call: one caller does not work for the others for ever

log = logging.getLogger(__name__)


def admit(outbox: Outbox, pipeline: Pipeline, tenant: str) -> int:
    """Start what may start now of a tenant's waiting operations, oldest first, and return how many.

    Costs one small read when nothing waits. Never raises: what it could not do, reconcile does.
    """
    try:
        return admit_tenant(outbox, pipeline, tenant)
    except EchoproofError as error:
        log.warning("admitted by reconcile instead: %s", error)
        return 0


def admit_tenant(outbox: Outbox, pipeline: Pipeline, tenant: str) -> int:
    """Do what `admit` does; raises what the database does.

    One at a time admits for a tenant, so that its limit holds. Who finds another at it leaves everything to the other,
    who looks again after its commit, when it no longer stands in anybody's way: no room goes unseen. So whoever has
    admitted, even nothing, looks again.
    """
    which = _which(pipeline, tenant)
    operations = 0
    for _ in range(ROUNDS):
        if not outbox.database.run("may_admit", repeat_if_lost=True, **which)[0].may:
            break
        admitted = outbox.database.in_transaction(lambda opened: _admitted(opened, outbox.writer_lease, which))
        if admitted is None:
            break
        outbox.publish_at_once(admitted)
        operations += len({dispatch.operation_id for dispatch in admitted})
    return operations


def _which(pipeline: Pipeline, tenant: str) -> dict[str, Any]:
    limit = pipeline.limits.in_flight_per_tenant
    return {"tenant": tenant, "in_flight": limit, "going_on": pipeline.going_on_in_review}


def batches(outbox: Outbox, pipeline: Pipeline, _batch: int) -> Iterator[Moved]:
    """Admit for every tenant of which something waits, in random order: `admitted`, tenant by tenant."""
    tenants = [row.tenant for row in outbox.database.run("list_waiting_tenants", repeat_if_lost=True)]
    random.shuffle(tenants)  # when the time is up before the end, other tenants are the last the next time
    for tenant in tenants:
        yield {"admitted": admit_tenant(outbox, pipeline, tenant)}


def _admitted(transaction: Transaction, writer_lease: float, which: dict[str, Any]) -> list[Dispatch] | None:
    """Admit a batch and return its dispatches; None when somebody else admits for the tenant."""
    tenant, going_on = which["tenant"], which["going_on"]
    if not transaction.run("lock_admission", tenant=tenant)[0].locked:
        return None
    free = transaction.run("lock_free_keys", tenant=tenant, going_on=going_on, batch=BATCH)
    keys = [row.ordering_key for row in free]
    rows = transaction.run("admit_operations", **which, ordering_keys=keys, batch=BATCH, writer_lease=writer_lease)
    return [Dispatch(*row) for row in rows]
