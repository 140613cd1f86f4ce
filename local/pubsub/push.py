"""Push delivery: the envelope, the token, the answer, and how many requests are in flight."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import TYPE_CHECKING, Any, Final

from local.pubsub.broker import PubsubMessage

if TYPE_CHECKING:
    from local.pubsub.backlog import Backlog, Delivery
    from local.serving.calls import Caller
    from local.signing import Signer

ACKNOWLEDGING: Final = frozenset({102, 200, 201, 202, 204})  # cloud.google.com/pubsub/docs/push
FIRST_WINDOW = 4  # requests in flight at the start ("a small single-digit number")
MAX_WINDOW = 64  # more would only queue up in front of functions that run on one machine
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # seconds of push backoff; Google's goes up to 60


class Window:
    """How many pushes may be in flight: slow start on success, halved on failure, paused on repeated failure.

    Each success adds one, which doubles the window in a round trip. A failure halves it; from the second in
    a row on, delivery also pauses, 100 ms doubling (Google's push backoff). Failures during a pause are those
    of requests already in flight and do not lengthen it.
    """

    def __init__(self) -> None:
        self.size = FIRST_WINDOW
        self._failures = 0

    def succeeded(self) -> None:
        """Widen the window."""
        self._failures = 0
        self.size = min(MAX_WINDOW, self.size + 1)

    def failed(self, *, paused: bool) -> float:
        """Narrow the window; return the seconds to pause, 0 for none."""
        self.size = max(1, self.size // 2)
        if paused:
            return 0.0
        self._failures += 1
        return min(MAX_PAUSE, FIRST_PAUSE * 2.0 ** (self._failures - 2)) if self._failures > 1 else 0.0


class Pusher:
    """Pushes a subscription's messages while it has a push endpoint."""

    def __init__(self, backlog: Backlog, caller: Caller, signer: Signer | None) -> None:
        self._backlog = backlog
        self._caller = caller
        self._signer = signer
        self._window = Window()
        self._in_flight: set[asyncio.Task[None]] = set()
        self._paused = self._closed = False
        backlog.listeners.append(self.pump)

    def pump(self) -> None:
        """Start as many pushes as the window admits."""
        while not (self._closed or self._paused) and len(self._in_flight) < self._window.size:
            taken = self._backlog.take(1) if self._backlog.config.push_config.push_endpoint else []
            if not taken:
                return
            push = asyncio.create_task(self._push(taken[0]))
            self._in_flight.add(push)
            push.add_done_callback(self._done)

    def _done(self, push: asyncio.Task[None]) -> None:
        self._in_flight.discard(push)
        self.pump()

    async def _push(self, delivery: Delivery) -> None:
        config = self._backlog.config
        body, headers = envelope(config, delivery), self._headers(config.push_config)
        answer = await self._caller.send(
            "POST", config.push_config.push_endpoint, body, headers, config.ack_deadline_seconds
        )
        try:
            self._settle(delivery, acknowledged=answer.status in ACKNOWLEDGING)
        except OSError:  # the disk is full: nothing has changed, so deliver again
            asyncio.get_running_loop().call_later(MAX_PAUSE, self._backlog.retry, delivery)

    def _settle(self, delivery: Delivery, *, acknowledged: bool) -> None:
        if acknowledged:
            self._window.succeeded()
            self._backlog.ack([delivery])
        else:
            self._pause(self._window.failed(paused=self._paused))
            self._backlog.nack(delivery)

    def _headers(self, config: Any) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "CloudPubSub-Google"}
        if self._signer is not None and config.oidc_token.service_account_email:
            audience = config.oidc_token.audience or config.push_endpoint
            token = self._signer.id_token(config.oidc_token.service_account_email, audience)
            headers["Authorization"] = f"Bearer {token}"
        return headers

    def _pause(self, length: float) -> None:
        if length:
            self._paused = True
            asyncio.get_running_loop().call_later(length, self._resume)

    def _resume(self) -> None:
        self._paused = False
        self.pump()

    async def close(self) -> None:
        """Cancel the pushes in flight, which count as neither acknowledged nor failed."""
        self.detach()
        await asyncio.gather(*self._in_flight, return_exceptions=True)

    def detach(self) -> None:
        """Stop pushing, without waiting."""
        self._closed = True
        for push in self._in_flight:
            push.cancel()


def envelope(config: Any, delivery: Delivery) -> bytes:
    """Return the wrapped JSON of a push, as Google's: members that have no value are absent.

    `deliveryAttempt` is there only when the subscription has a dead-letter policy.
    """
    message = PubsubMessage.FromString(delivery.message.raw)
    published = message.publish_time.ToJsonString()
    inner: dict[str, Any] = {
        "messageId": message.message_id,
        "message_id": message.message_id,
        "publishTime": published,
        "publish_time": published,
    }
    if message.data:
        inner["data"] = base64.b64encode(message.data).decode("ascii")
    if message.attributes:
        inner["attributes"] = dict(message.attributes)
    if message.ordering_key:
        inner["orderingKey"] = message.ordering_key
    outer: dict[str, Any] = {"message": inner, "subscription": config.name}
    if config.HasField("dead_letter_policy"):
        outer["deliveryAttempt"] = delivery.failed + 1
    return json.dumps(outer, ensure_ascii=False).encode()
