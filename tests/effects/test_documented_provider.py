"""The provider that docs/effects.md shows is complete, short, and keeps the contract."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from shared import ijson, providers
from shared.providers.http import NoAnswerError, NotReachedError, exchange
from tests.effects.kit import EffectsKit, one_effect
from tests.effects.table import DOCUMENT

LINES = 30  # of code: what issue and documentation promise
PARCEL = {"address": "Hof 1, Weimar"}


class Carrier(ThreadingHTTPServer):
    """Takes one parcel for each reference; answers as its list says, after having taken it, and truly otherwise."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.parcels: dict[str, Any] = {}
        self.puts: list[tuple[str, bytes]] = []
        self.statuses: list[int] = []  # 0 hangs up
        self.away = False  # whether it takes nothing meanwhile


class _Request(BaseHTTPRequestHandler):
    server: Carrier

    def do_PUT(self) -> None:
        key, body = self.path.rsplit("/", 1)[1], self.rfile.read(int(self.headers["content-length"]))
        self.server.puts.append((key, body))
        if not self.server.away:
            self.server.parcels[key] = json.loads(body)
        self._answer(self.server.statuses.pop(0) if self.server.statuses else 201)

    def do_GET(self) -> None:
        self._answer(200 if self.path.rsplit("/", 1)[1] in self.server.parcels else 404)

    def _answer(self, status: int) -> None:
        if status:
            self.send_response(status)
            self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def carrier() -> Iterator[Carrier]:
    with Carrier() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def parcels(carrier: Carrier) -> Any:
    return documented()["Parcels"](f"http://127.0.0.1:{carrier.server_address[1]}")


def source() -> str:
    blocks = DOCUMENT.read_text().split("```python\n")[1:]
    (found,) = [block.split("```")[0] for block in blocks if block.startswith("class Parcels")]
    return found


def documented() -> dict[str, Any]:
    """Execute the class with the imports that the documentation names."""
    names: dict[str, Any] = {"json": json, "timedelta": timedelta, "Any": Any, "ijson": ijson, **vars(providers)}
    names |= {"exchange": exchange, "NoAnswerError": NoAnswerError, "NotReachedError": NotReachedError}
    exec(source(), names)
    return names


def test_it_has_thirty_lines() -> None:
    code = [line for line in source().splitlines() if line.strip() and not line.strip().startswith('"""')]
    assert len(code) <= LINES


def test_a_lost_answer_is_sent_again_under_the_same_key(kit: EffectsKit, carrier: Carrier, parcels: Any) -> None:
    operation_id = kit.accept().operation_id
    carrier.statuses = [0, 500]
    outcomes = [kit.deliver(operation_id, one_effect(parcels, PARCEL)).outcome for _ in range(3)]
    assert outcomes == ["queued", "queued", "succeeded"]
    assert len(carrier.puts) == 3
    assert len(set(carrier.puts)) == 1
    assert list(carrier.parcels.values()) == [PARCEL]


def test_a_definite_no_fails_and_a_no_after_a_lost_answer_is_looked_up(
    kit: EffectsKit, carrier: Carrier, parcels: Any
) -> None:
    refused = kit.accept().operation_id
    carrier.statuses = [422]
    assert kit.deliver(refused, one_effect(parcels, PARCEL)).outcome == "failed"
    taken = kit.accept().operation_id
    carrier.statuses = [0, 422]
    assert kit.deliver(taken, one_effect(parcels, PARCEL)).outcome == "queued"
    assert kit.deliver(taken, one_effect(parcels, PARCEL)).outcome == "succeeded"
    assert kit.effect(taken)["evidence"] == "lookup"


def test_past_its_horizon_absence_is_proved_before_it_is_sent_again(
    kit: EffectsKit, carrier: Carrier, parcels: Any
) -> None:
    operation_id = kit.accept().operation_id
    carrier.statuses, carrier.away = [0], True
    assert kit.deliver(operation_id, one_effect(parcels, PARCEL)).outcome == "queued"
    carrier.away = False
    kit.pass_time(31 * 86_400)
    assert kit.deliver(operation_id, one_effect(parcels, PARCEL)).outcome == "succeeded"
    assert (len(carrier.puts), kit.effect(operation_id)["lookups"]) == (2, 1)


def test_it_does_not_raise_when_the_carrier_is_away() -> None:
    away = documented()["Parcels"]("http://127.0.0.1:9")
    assert isinstance(away.send("k", b"{}"), providers.NotSent)
    assert isinstance(away.lookup("k", b"{}"), providers.NotKnown)
