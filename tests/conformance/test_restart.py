"""Delivery after the server's death: ours only, because Google's emulator keeps everything in memory."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.cases import Backend, data_of
from tests.local.endpoint import Endpoint
from tests.local.process import ServerProcess


def test_everything_accepted_survives_sigkill(tmp_path: Path, endpoint: Endpoint, name: str) -> None:
    process = ServerProcess("local.pubsub", "--data", str(tmp_path))
    backend = Backend("local", process.addresses["pubsub"])
    topic, pulled = backend.pair(name)
    pushed = backend.subscription(f"{name}-push", topic, endpoint.url(f"/{name}", 500))
    ids = backend.publish(topic, *({"data": str(number).encode()} for number in range(100)))
    endpoint.wait(f"/{name}", 1)
    acknowledged = {each.message.message_id for each in backend.pull(pulled)}
    late = backend.publish(topic, {"data": b"late"})
    process.kill()

    endpoint.url(f"/{name}", 200)
    before = len(endpoint.received(f"/{name}"))
    process.restart()
    backend = Backend("local", process.addresses["pubsub"])
    assert backend.subscriber.get_subscription(subscription=pushed).topic == topic
    found = {each.message.message_id for each in backend.pull(pulled, 101 - len(acknowledged))}
    assert found == {*ids, *late} - acknowledged
    requests = endpoint.wait(f"/{name}", before + 101)[before:]
    assert {request.json["message"]["messageId"] for request in requests} == {*ids, *late}
    assert b"late" in {data_of(request.json["message"]) for request in requests}
    [new] = backend.publish(topic, {"data": b"new"})
    assert new not in {*ids, *late}
    assert process.end() == 0
