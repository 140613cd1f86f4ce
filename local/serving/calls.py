"""HTTP requests to endpoints: what both servers do with a message or a task in the end."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from collections.abc import Mapping

# Shorter than the 2 s after which gunicorn (functions-framework) closes an idle connection: a request that
# meets a connection just being closed would count as a failed delivery.
KEEP_ALIVE = 1.0
PROCESSING = 102  # Pub/Sub takes this interim status for an acknowledgement


class _ProcessingAnswer(Exception):  # noqa: N818 - an answer, not an error
    """The endpoint has sent the interim status 102."""


class _Protocol(ResponseHandler):
    """aiohttp's protocol, but 102 is not silently skipped while waiting for the final status."""

    async def read(self) -> Any:
        message, payload = await super().read()
        if message.code == PROCESSING:
            raise _ProcessingAnswer
        return message, payload


@dataclass(frozen=True)
class Answer:
    """What came of one HTTP request: a status, or None with the `problem` (`timeout`, an error's name)."""

    status: int | None
    problem: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Caller:
    """An HTTP client for deliveries: no redirects, no cookies, no limit on connections, short keep-alive.

    With `processing`, the interim status 102 ends the request, as in Pub/Sub.
    """

    def __init__(self, *, processing: bool = False) -> None:
        connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE)
        if processing:
            factory: Any = partial(_Protocol, loop=asyncio.get_running_loop())
            connector._factory = factory
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            skip_auto_headers=("Content-Type",),
        )

    async def send(
        self, method: str, url: str, body: bytes | None, headers: Mapping[str, str], timeout: float
    ) -> Answer:
        """Send one request and read its answer to the end within `timeout` seconds; no failure raises."""
        try:
            async with self._session.request(
                method,
                url,
                data=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout, ceil_threshold=timeout),
            ) as response:
                await response.read()
                return Answer(response.status, headers=response.headers)
        except _ProcessingAnswer:
            return Answer(PROCESSING)
        except TimeoutError:
            return Answer(None, "timeout")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return Answer(None, type(error).__name__)

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()
