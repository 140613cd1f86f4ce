"""Chooses operations for a demonstration: deterministic, and with as much variety as the orders have."""

from __future__ import annotations

import calendar
from collections import defaultdict
from collections.abc import Iterable, Iterator
from datetime import date
from itertools import islice
from typing import Any

from shared.invoicing.orders import Operation


def choose(operations: Iterable[Operation], count: int) -> list[Operation]:
    """Choose `count` operations, in the order of the source; the same source and count give the same ones.

    Up to a fortieth are the longest orders, an eighth credit notes and a quarter documents with text beyond
    ASCII; the rest are the first ones left. Holds all operations of the source in memory.
    Raises ValueError when there are fewer than `count`.
    """
    pool = list(operations)
    if count > len(pool):
        raise ValueError(f"{count} operations wanted, but the orders give {len(pool)}")
    longest = sorted(range(len(pool)), key=lambda i: -pool[i].lines)
    wanted = [
        islice(longest, count // 40),
        islice((i for i, o in enumerate(pool) if o.body["input"]["kind"] == "credit_note"), count // 8),
        islice((i for i, o in enumerate(pool) if not _is_ascii(o.body)), count // 4),
    ]
    chosen = {i for indexes in wanted for i in indexes}
    chosen.update(islice((i for i in range(len(pool)) if i not in chosen), count - len(chosen)))
    return [pool[i] for i in sorted(chosen)]


def report_operations(operations: Iterable[Operation]) -> Iterator[dict[str, Any]]:
    """Yield {"key", "body"} of one `report.generate` for each customer and month with several documents.

    Months are those of the orders' own dates. Post them when the operations given here have been recorded: a
    report covers what is recorded when it runs.
    """
    accounts: dict[tuple[str, int, int], list[str]] = defaultdict(list)
    for operation in operations:
        order = operation.body["input"]
        day = date.fromisoformat(order["ordered_at"][:10])
        accounts[order["customer"]["id"], day.year, day.month].append(order["customer"]["email"])
    for (account, year, month), emails in sorted(accounts.items()):
        if len(emails) > 1:
            yield _report(account, year, month, emails[0])


def _report(account: str, year: int, month: int, email: str) -> dict[str, Any]:
    first = date(year, month, 1)
    last = first.replace(day=calendar.monthrange(year, month)[1])
    period = {"from": first.isoformat(), "to": last.isoformat()}
    body = {"type": "report.generate", "input": {"account": account, "period": period, "email": email}}
    return {"key": f"report-{account}-{year:04d}-{month:02d}", "body": body}


def _is_ascii(body: dict[str, Any]) -> bool:
    order = body["input"]
    return order["customer"]["name"].isascii() and all(line["description"].isascii() for line in order["lines"])
