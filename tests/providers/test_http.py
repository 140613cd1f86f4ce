"""The one HTTP exchange: what proves that nothing was sent, and what leaves it open, all by a deadline."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from shared.providers import http, sockets
from shared.providers.http import Answer, NoAnswerError, NotReachedError, exchange
from tests.providers.certificates import Pair, certificate
from tests.providers.clock import within
from tests.providers.scripted import Scripted, Visit, answer, closed_port

SHORT = 0.4  # seconds; the deadline of what never ends here
LONG = 10.0  # seconds; of what ends by itself
OK = answer("200 OK", b"{}")


def post(url: str, timeout: float = LONG, **headers: str) -> Answer:
    return exchange("POST", url, headers, b"amount=1", timeout)


def test_an_exchange_is_one_request_as_it_was_given() -> None:
    with Scripted(lambda visit: visit.read().say(answer("201 Created", b"made", "X-One: 1"))) as server:
        got = exchange("POST", f"{server.url}/a/b?c=d%20e", {"x-key": "k"}, b"body", LONG)
    assert (got.status, got.body, got.headers["x-one"]) == (201, b"made", "1")
    (request,) = server.requests
    head, _, body = request.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /a/b?c=d%20e HTTP/1.1"
    assert {f"Host: 127.0.0.1:{server.port}".encode(), b"x-key: k", b"Content-Length: 4"} <= set(lines)
    assert body == b"body"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_no_redirect_is_followed(status: str) -> None:
    with Scripted(lambda visit: visit.read().say(OK)) as elsewhere:
        moved = answer(status, b"", f"Location: {elsewhere.url}/")
        with Scripted(lambda visit: visit.read().say(moved)) as server:
            assert post(server.url).status == int(status[:3])
        assert elsewhere.visits == []


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\n\r\nall of it",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nall of\r\n3\r\n it\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nall of it",
    ],
)
def test_a_body_is_read_however_its_end_is_told(raw: bytes) -> None:
    with Scripted(lambda visit: visit.read().say(raw)) as server:
        assert post(server.url).body == b"all of it"


# Proof that nothing was sent


def test_a_refused_connection_is_proof() -> None:
    with pytest.raises(NotReachedError, match="ConnectionRefusedError"):
        post(f"http://127.0.0.1:{closed_port()}")


def test_an_unknown_host_is_proof() -> None:
    with pytest.raises(NotReachedError, match="gaierror"):
        post("http://no-such-host.invalid")


def test_a_resolver_that_does_not_answer_is_left_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: answered.wait(30) and [])
    with within(SHORT), pytest.raises(NotReachedError, match="TimeoutError"):
        post("http://slow.example", SHORT)
    answered.set()


def test_a_connection_that_is_never_made_is_left_at_the_deadline() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(0)  # a full backlog: the kernel drops further SYNs, as a firewall does
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.settimeout(0)
            filler.connect_ex(server.getsockname())
        with within(SHORT), pytest.raises(NotReachedError, match="TimeoutError"):
            post(f"http://127.0.0.1:{server.getsockname()[1]}", SHORT)
        for filler in fillers:
            filler.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return certificate(tmp_path_factory.mktemp("tls"))


def tls_script(pair: Pair, seen: list[bytes]) -> Callable[[Visit], None]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)

    def serve(visit: Visit) -> None:
        with context.wrap_socket(visit.connection, server_side=True) as secure:
            while not b"".join(seen).endswith(b"amount=1"):
                seen.append(secure.recv(65536))
            secure.sendall(OK)

    return serve


def test_an_untrusted_certificate_is_proof_and_nothing_arrived(pair: Pair) -> None:
    seen: list[bytes] = []
    with Scripted(tls_script(pair, seen)) as server, pytest.raises(NotReachedError, match="SSLCertVerificationError"):
        post(f"https://localhost:{server.port}")
    assert b"".join(seen) == b""


@pytest.fixture
def trusted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.create_default_context(cafile=str(pair.certificate))
    monkeypatch.setattr(sockets, "tls", lambda: context)


@pytest.mark.usefixtures("trusted")
def test_a_trusted_certificate_carries_the_exchange_and_another_hosts_does_not(pair: Pair) -> None:
    seen: list[bytes] = []
    with Scripted(tls_script(pair, seen)) as server:
        assert post(f"https://localhost:{server.port}").status == 200
        with pytest.raises(NotReachedError, match="SSLCertVerificationError"):
            post(f"https://127.0.0.1:{server.port}")
    assert b"".join(seen).startswith(b"POST / HTTP/1.1\r\n")


@pytest.mark.parametrize("script", [Visit.hang, lambda visit: visit.drip(b"\x16\x03\x03\x10\x00" + b"\0" * 4096)])
def test_a_handshake_that_never_ends_is_left_at_the_deadline_and_nothing_was_sent(
    script: Callable[[Visit], object],
) -> None:
    with (
        Scripted(lambda visit: script(visit)) as server,
        within(SHORT),
        pytest.raises(NotReachedError),
    ):
        post(f"https://localhost:{server.port}", SHORT)


@pytest.mark.parametrize(
    "value", ["a\r\nX-Evil: 1", "a\nX-Evil: 1", "a\r\n X-Evil: 1", "a\rb", "a\0b", "a\r\n\r\nPOST /", "\u0141"]
)
def test_a_header_cannot_add_another_and_nothing_is_sent(value: str) -> None:
    with Scripted(Visit.hang) as server, pytest.raises(NotReachedError) as caught:
        post(server.url, key=value)
    assert server.visits == []
    assert "Evil" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "a\r\nb", "", "a:b\n", "\u0141"])
def test_a_headers_name_is_one_too(name: str) -> None:
    with Scripted(Visit.hang) as server, pytest.raises(NotReachedError):
        exchange("POST", server.url, {name: "x"}, b"", LONG)
    assert server.visits == []


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1/", "http://", "", "http://127.0.0.1:99999/", "http://h:port/", "http://h/a b"]
)
def test_what_is_not_a_url_is_not_sent(url: str) -> None:
    with pytest.raises(NotReachedError):
        post(url)


# It may have arrived


@pytest.mark.parametrize(
    "script",
    [
        lambda visit: visit.read(),
        lambda visit: visit.read().reset(),
        lambda visit: visit.read().say(b"HTTP/1.1 20"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nff\r\nhalf"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"),
        lambda visit: visit.read().say(b"220 mail.example ESMTP\r\n"),
        lambda visit: visit.read().say(b"HTTP/1.1 xyz\r\n\r\n"),
        lambda visit: visit.read().repeat(b"X-Endless: yes\r\n"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n").repeat(b"X-Endless: yes\r\n"),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nX-Endless: ").repeat(b"y" * 1000),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n\r\n").repeat(b"y" * 65536),
        lambda visit: visit.read().say(answer("200 OK", b"y" * (http.MAX_ANSWER_BYTES + 1))),
    ],
)
def test_half_an_answer_or_an_endless_one_is_none(script: Callable[[Visit], object]) -> None:
    with Scripted(lambda visit: script(visit)) as server, within(LONG), pytest.raises(NoAnswerError):
        post(server.url)
    assert server.requests[0].endswith(b"\r\n\r\namount=1")


def test_the_longest_answer_is_read() -> None:
    with Scripted(lambda visit: visit.read().say(answer("200 OK", b"y" * http.MAX_ANSWER_BYTES))) as server:
        assert len(post(server.url).body) == http.MAX_ANSWER_BYTES


@pytest.mark.parametrize(
    "script",
    [
        Visit.hang,
        lambda visit: visit.read().hang(),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n").hang(),
        lambda visit: visit.read().drip(OK * 100),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n").drip(b"y" * 99999),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n\r\n").drip(b"y" * 99999),
        lambda visit: (
            visit.read().say(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n").drip(b"1\r\ny\r\n" * 99)
        ),
        lambda visit: visit.read().repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_what_is_not_over_at_the_deadline_is_left(script: Callable[[Visit], object]) -> None:
    with Scripted(lambda visit: script(visit)) as server, within(SHORT), pytest.raises(NoAnswerError):
        post(server.url, SHORT)


def test_a_server_that_does_not_read_is_left_at_the_deadline() -> None:
    with Scripted(Visit.hang) as server, within(SHORT), pytest.raises(NoAnswerError, match="TimeoutError"):
        exchange("POST", server.url, {}, b"y" * 30_000_000, SHORT)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts descriptors in /proc, which Linux has")
def test_no_descriptor_is_left_open_whatever_happens() -> None:
    scripts = [lambda visit: visit.read().say(OK), lambda visit: visit.read(), lambda visit: visit.read().reset()]
    turns = iter(range(10_000))
    with Scripted(lambda visit: scripts[next(turns) % 3](visit)) as server:
        closed = closed_port()
        before = descriptors()
        for number in range(200):
            url = f"http://127.0.0.1:{closed}" if number % 4 == 3 else server.url
            try:
                post(url)
            except (NotReachedError, NoAnswerError):
                continue
        settled = threading.Event()
        for _ in range(100):  # the server's own ends close a moment later
            if descriptors() <= before:
                break
            settled.wait(0.05)
        assert descriptors() <= before
