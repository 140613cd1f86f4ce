"""The total deadline of a requests session, over TLS too."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable

import pytest
import requests

from shared.providers.cutting import CuttableAdapter
from tests.providers.certificates import Pair, certificate
from tests.providers.clock import within
from tests.providers.scripted import DRIP, Scripted, Visit, answer


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return certificate(tmp_path_factory.mktemp("tls"))


def dripping(pair: Pair, head: bytes) -> Callable[[Visit], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def serve(visit: Visit) -> None:
        with context.wrap_socket(visit.connection, server_side=True) as secure:
            secure.recv(65536)
            secure.sendall(head)
            while not visit.over.wait(DRIP):
                secure.sendall(b"x")

    return serve


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"])
def test_a_drip_over_tls_is_cut(pair: Pair, head: bytes) -> None:
    with requests.Session() as session, Scripted(dripping(pair, head)) as server:
        adapter = CuttableAdapter()
        session.mount("https://", adapter)
        with within(0.4), adapter.within(0.4):
            try:
                answered = session.get(f"https://localhost:{server.port}", verify=str(pair.certificate), timeout=30)
            except requests.RequestException:
                return
        # Only a body whose end nothing else tells can look whole.
        assert b"Content-Length" not in head
        assert answered.content.strip(b"x") == b""


def test_a_call_that_is_over_in_time_is_left_alone() -> None:
    with requests.Session() as session, Scripted(lambda visit: visit.read().say(answer("200 OK", b"all"))) as server:
        adapter = CuttableAdapter()
        session.mount("http://", adapter)
        with adapter.within(30):
            assert session.get(server.url, timeout=30).content == b"all"
        assert not [thread for thread in threading.enumerate() if thread.name == "deadline" and _waits(thread)]


def _waits(thread: threading.Thread) -> bool:
    thread.join(10)
    return thread.is_alive()


def test_closed_connections_are_not_kept() -> None:
    adapter, last = CuttableAdapter(), answer("200 OK", b"", "Connection: close")
    with requests.Session() as session, Scripted(lambda visit: visit.read().say(last)) as server:
        session.mount("http://", adapter)
        for _ in range(20):
            session.get(server.url, timeout=30)
    assert len(adapter._opened) <= 2
