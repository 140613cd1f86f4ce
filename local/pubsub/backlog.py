"""A subscription's backlog: what is ready, what waits, what is leased, and what becomes of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from local.pubsub.limits import seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from local.serving.journal import Journal

# Without a retry policy redelivery is immediate; this keeps a failing endpoint from being hammered.
IMMEDIATE = 0.1  # seconds
# Of one pull's messages: the clients accept 4 MiB when PUBSUB_EMULATOR_HOST is set (gRPC's default; they lift
# it for the real service only). A single larger message still goes out alone.
MAX_BATCH_BYTES = 3_500_000


@dataclass(slots=True)
class Message:
    """A published message; `raw` is its PubsubMessage, `holders` counts the subscriptions that hold it."""

    id: str
    raw: bytes
    published: float  # seconds since 1970
    holders: int = 0

    @property
    def key(self) -> str:
        """Key in the journal."""
        return f"m/{self.id}"


@dataclass(slots=True)
class Delivery:
    """A message on its way to one subscription; `failed` counts its nacks and expired deadlines."""

    message: Message
    failed: int = 0


@dataclass(slots=True)
class Lease:
    """A delivery given to a pull subscriber until its deadline."""

    delivery: Delivery
    timer: asyncio.TimerHandle


class Backlog:
    """One subscription: its settings and its unacknowledged messages.

    `forward` publishes a delivery to the dead-letter topic and drops it here; it returns False when that
    topic is gone. Every change that must survive is in the journal before the method returns.
    """

    def __init__(self, config: Any, journal: Journal, forward: Callable[[Backlog, Delivery], bool]) -> None:
        self.config = config
        self.listeners: list[Callable[[], None]] = []  # called when something became ready
        self._journal = journal
        self._forward = forward
        self._held: dict[str, Delivery] = {}
        self._ready: deque[Delivery] = deque()
        self._leases: dict[str, Lease] = {}
        self._waiters: set[asyncio.Future[None]] = set()
        self._numbers = itertools.count(time.time_ns())

    @property
    def name(self) -> str:
        """Full name of the subscription."""
        return str(self.config.name)

    def __len__(self) -> int:
        return len(self._held)

    def key(self, message_id: str) -> str:
        """Key of a delivery in the journal."""
        return f"d/{self.name}/{message_id}"

    def add(self, deliveries: Iterable[Delivery]) -> None:
        """Take deliveries that are already in the journal."""
        for delivery in deliveries:
            delivery.message.holders += 1
            self._held[delivery.message.id] = delivery
            self._ready.append(delivery)
        self._signal()

    def take(self, limit: int) -> list[Delivery]:
        """Remove up to `limit` deliveries (3.5 MB) from the ready ones; expired messages are dropped."""
        taken: list[Delivery] = []
        oldest = time.time() - seconds(self.config.message_retention_duration)
        size = 0
        while self._ready and len(taken) < limit:
            delivery = self._ready[0]
            if taken and size + len(delivery.message.raw) > MAX_BATCH_BYTES:
                break
            self._ready.popleft()
            if delivery.message.id not in self._held:
                continue  # acknowledged after its deadline, while it waited here again
            if delivery.message.published < oldest:
                self.ack([delivery])
                continue
            size += len(delivery.message.raw)
            taken.append(delivery)
        return taken

    def ack(self, deliveries: Iterable[Delivery]) -> None:
        """Forget deliveries; those already forgotten are skipped."""
        deliveries = list(deliveries)
        self._journal.write(drops=self.records(deliveries))
        self.release(deliveries)

    def records(self, deliveries: Iterable[Delivery]) -> list[str]:
        """Return the keys that leave the journal with these deliveries: theirs, and messages held by no other."""
        messages = [each.message for each in deliveries if each.message.id in self._held]
        return [self.key(message.id) for message in messages] + [
            message.key for message in messages if message.holders == 1
        ]

    def release(self, deliveries: Iterable[Delivery]) -> None:
        """Take deliveries out of memory, after the journal has let them go."""
        for delivery in deliveries:
            if self._held.pop(delivery.message.id, None) is not None:
                delivery.message.holders -= 1

    def nack(self, delivery: Delivery) -> None:
        """Count a failed delivery; then dead-letter it, or deliver it again after the policy's backoff."""
        if delivery.message.id not in self._held:
            return
        delivery.failed += 1
        policy = self.config.dead_letter_policy
        spent = bool(policy.dead_letter_topic) and delivery.failed >= policy.max_delivery_attempts
        if spent and self._forward(self, delivery):
            return
        self._journal.write([(self.key(delivery.message.id), str(delivery.failed).encode())])
        asyncio.get_running_loop().call_later(self._backoff(delivery.failed), self.retry, delivery)

    def _backoff(self, failed: int) -> float:
        if not self.config.HasField("retry_policy"):
            return IMMEDIATE
        policy = self.config.retry_policy
        low, high = seconds(policy.minimum_backoff), seconds(policy.maximum_backoff)
        return min(high, low * 2.0 ** min(failed - 1, 60))

    def retry(self, delivery: Delivery) -> None:
        """Make a delivery ready again at once, without counting a failure."""
        if delivery.message.id in self._held:
            self._ready.append(delivery)
            self._signal()

    def lease(self, delivery: Delivery, deadline: float) -> str:
        """Give a delivery to a subscriber for `deadline` seconds; return the acknowledgement id."""
        ack_id = f"{self.name}:{next(self._numbers)}"
        timer = asyncio.get_running_loop().call_later(deadline, self._expire, ack_id)
        self._leases[ack_id] = Lease(delivery, timer)
        return ack_id

    def ack_leases(self, ack_ids: Iterable[str]) -> None:
        """Acknowledge leases; ids that have expired are skipped (the message will come again)."""
        leases = [lease for ack_id in ack_ids if (lease := self._end(ack_id))]
        self.ack(lease.delivery for lease in leases)
        self._signal()

    def modify_lease(self, ack_id: str, deadline: float) -> None:
        """Let a lease end `deadline` seconds from now; 0 is a nack; an expired id is skipped."""
        lease = self._end(ack_id)
        if lease is None:
            return
        if deadline:
            timer = asyncio.get_running_loop().call_later(deadline, self._expire, ack_id)
            self._leases[ack_id] = Lease(lease.delivery, timer)
        else:
            self.nack(lease.delivery)

    def leased(self, ack_ids: Iterable[str]) -> set[str]:
        """Return those of the ids whose lease has not ended."""
        return {ack_id for ack_id in ack_ids if ack_id in self._leases}

    def _end(self, ack_id: str) -> Lease | None:
        lease = self._leases.pop(ack_id, None)
        if lease is not None:
            lease.timer.cancel()
        return lease

    def _expire(self, ack_id: str) -> None:
        lease = self._leases.pop(ack_id, None)
        if lease is not None:
            self.nack(lease.delivery)

    async def wait(self, timeout: float) -> None:
        """Return when something may have become ready, or after `timeout` seconds."""
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await asyncio.wait([waiter], timeout=timeout)
        finally:
            self._waiters.discard(waiter)

    def _signal(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        for listener in self.listeners:
            listener()

    def empty(self) -> None:
        """Take everything out of memory, and end the leases."""
        for ack_id in list(self._leases):
            self._end(ack_id)
        self._ready.clear()
        self.release(self.held())

    def held(self) -> list[Delivery]:
        """Return every unacknowledged delivery."""
        return list(self._held.values())
