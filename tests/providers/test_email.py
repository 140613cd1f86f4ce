"""E-mail as a provider: against the real sink, and against servers that fail at every step."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from local.mail import Fault, MailSink
from shared.providers import (
    Absent,
    Ambiguous,
    Confirmed,
    Found,
    NotKnown,
    NotSent,
    Outcome,
    Rejected,
    mailserver,
    sockets,
)
from shared.providers.email import Email
from shared.providers.message import Letter, message_id
from shared.providers.settings import MailSettings
from tests.providers.certificates import Pair, certificate
from tests.providers.clock import within
from tests.providers.scripted import Scripted, Visit, answer, closed_port

KEY = "0f" * 32  # a provider key, as the ledger makes it
ID = message_id(KEY)
ACCEPTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PDF = b"%PDF-1.4 \x00\xff\n.\r\n..\n"
LETTER = Letter("ada@example.com", "Ada Łovelace", "Invoice INV-000001", "Dear Ada,\n\n.\n£ 15.30\n", {"a.pdf": PDF})


def email(smtp_url: str, **settings: Any) -> Email:
    return Email(MailSettings(smtp_url=SecretStr(smtp_url), mail_from="billing@shop.example", **settings))


def request(provider: Email, letter: Letter = LETTER) -> bytes:
    return provider.encode(provider.letter(letter, ACCEPTED))


def send(provider: Email, key: str = KEY) -> Outcome:
    return provider.send(key, request(provider))


@contextlib.contextmanager
def serving(folder: Path, fault: Fault | None = None) -> Iterator[tuple[MailSink, Email]]:
    with MailSink(folder, fault=fault) as sink:
        yield sink, email(sink.smtp_url, sent_log_url=sink.sent_log_url)


# Against the sink


def test_what_was_accepted_is_confirmed_and_found(tmp_path: Path) -> None:
    with serving(tmp_path) as (sink, provider):
        assert provider.lookup(KEY, request(provider)) == Absent()
        assert send(provider) == Confirmed({"message_id": ID}, ID)
        assert provider.lookup(KEY, request(provider)) == Found({"message_id": ID}, ID)
        assert provider.lookup("1e" * 32, request(provider)) == Absent()
        found = sink.log.find(ID)
        assert found is not None
        assert (found["recipients"], found["subject"]) == ([LETTER.recipient], LETTER.subject)


def test_an_answer_that_was_lost_is_ambiguous_and_the_log_knows(tmp_path: Path) -> None:
    with serving(tmp_path, lambda *_: "drop") as (_, provider):
        assert isinstance(send(provider), Ambiguous)
        assert provider.lookup(KEY, request(provider)) == Found({"message_id": ID}, ID)


def test_without_a_log_nobody_can_say(tmp_path: Path) -> None:
    with serving(tmp_path) as (sink, with_log):
        provider = email(sink.smtp_url)
        assert isinstance(send(provider), Confirmed)
        assert isinstance(provider.lookup(KEY, request(provider)), NotKnown)
        assert (provider.visibility, provider.idempotent) == (None, False)
        assert with_log.visibility == timedelta(seconds=30)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("451 try again", NotSent("the mail server did not take the message (451)")),
        ("421 going down", NotSent("the mail server did not take the message (421)")),
        ("552 too big for ada@example.com", Rejected("the mail server refuses the message (552)")),
        ("25", Ambiguous("the answer to a message cannot be read")),
        ("251 elsewhere", Ambiguous("the answer to a message cannot be read")),
        ("354 go on", Ambiguous("the answer to a message cannot be read")),
        ("what?", Ambiguous("the answer to a message cannot be read")),
    ],
)
def test_the_reply_to_a_message_is_taken_for_what_it_proves(tmp_path: Path, said: str, expected: Outcome) -> None:
    with serving(tmp_path, lambda *_: said) as (_, provider):
        assert send(provider) == expected


def test_every_send_of_a_key_is_the_same_message(tmp_path: Path) -> None:
    with serving(tmp_path) as (sink, provider):
        send(provider)
        later = email(sink.smtp_url, sent_log_url=sink.sent_log_url)
        later.send(KEY, request(provider))
        send(provider, "1e" * 32)
        first, second = sink.log.contents(ID)
        assert first == second
        assert sink.log.contents(message_id("1e" * 32)) != [first]


def test_a_message_that_cannot_be_written_is_a_no_and_nothing_is_sent(tmp_path: Path) -> None:
    wrong = [
        Letter("ada@example.com, eve@example.com", "", "a", "b", {}),
        Letter("ada@example.com", "Ada\r\nBcc: eve@example.com", "a", "b", {}),
        Letter("ada@example.com", "", "a\nBcc: eve@example.com", "b", {}),
    ]
    with serving(tmp_path) as (sink, provider):
        for letter in wrong:
            outcome = provider.send(KEY, request(provider, letter))
            assert isinstance(outcome, Rejected)
            assert "example" not in outcome.reason
        assert sink.log.count() == 0


# Servers that fail

GREETING, OK, START = b"220 hello\r\n", b"250 ok\r\n", b"354 go on\r\n"


def replies(*lines: bytes, then: Callable[[Visit], object] = lambda _: None) -> Callable[[Visit], object]:
    """Return a script: a reply to each command, from the greeting on, then what else."""

    def serve(visit: Visit) -> None:
        with visit.connection.makefile("rb") as commands:
            for number, line in enumerate(lines):
                visit.say(line)
                if line == START:
                    while commands.readline() not in (b".\r\n", b""):
                        continue
                elif number < len(lines) - 1 or line == GREETING:
                    commands.readline()
        then(visit)

    return serve


BEFORE = [(), (GREETING,), (GREETING, OK), (GREETING, OK, OK)]
AFTER = [(GREETING, OK, OK, OK), (GREETING, OK, OK, OK, START)]


@pytest.mark.parametrize("lines", BEFORE)
def test_what_breaks_off_before_the_message_was_not_sent(lines: tuple[bytes, ...]) -> None:
    with Scripted(replies(*lines)) as server:
        assert isinstance(send(email(f"smtp://127.0.0.1:{server.port}")), NotSent)
        assert len(server.visits) == 1


@pytest.mark.parametrize("lines", AFTER)
def test_what_breaks_off_with_the_message_is_ambiguous(lines: tuple[bytes, ...]) -> None:
    with Scripted(replies(*lines)) as server:
        assert isinstance(send(email(f"smtp://127.0.0.1:{server.port}")), Ambiguous)
        assert len(server.visits) == 1


@pytest.mark.parametrize("lines", [*BEFORE, *AFTER])
@pytest.mark.parametrize(
    "then", [Visit.hang, lambda visit: visit.drip(b"250-" + b"x" * 999), lambda visit: visit.repeat(b"250-more\r\n")]
)
def test_a_send_ends_by_the_timeout_wherever_it_hangs_or_drips(
    lines: tuple[bytes, ...], then: Callable[[Visit], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailserver, "DEADLINE", 0.25)
    with Scripted(replies(*lines, then=then)) as server, within(0.25):
        outcome = send(email(f"smtp://127.0.0.1:{server.port}"))
    assert isinstance(outcome, NotSent if lines in BEFORE else Ambiguous)


def test_its_timeout_is_the_one_that_the_ledger_is_told() -> None:
    assert Email.timeout == timedelta(seconds=mailserver.DEADLINE)


def test_a_server_that_is_away_proves_that_nothing_was_sent() -> None:
    assert send(email(f"smtp://127.0.0.1:{closed_port()}")) == NotSent(
        "the mail server cannot be reached (ConnectionRefusedError)"
    )
    assert isinstance(send(email("smtp://no-such-host.invalid")), NotSent)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((b"554 no service\r\n",), NotSent("the mail server cannot be reached (SMTPConnectError)")),
        ((GREETING, b"250-hi\r\n250 AUTH PLAIN\r\n", b"535 no hunter2\r\n"),
         NotSent("the mail server refused the login (535)")),
        ((GREETING, OK), NotSent("the mail server cannot be reached (SMTPNotSupportedError)")),
    ],
)  # fmt: skip
def test_a_refused_login_says_no_password(lines: tuple[bytes, ...], expected: Outcome) -> None:
    with Scripted(replies(*lines)) as server:
        assert send(email(f"smtp://ada:hunter2@127.0.0.1:{server.port}")) == expected


# TLS


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return certificate(tmp_path_factory.mktemp("tls"))


SEEN: list[bytes] = []


def secured(pair: Pair, *, first: tuple[bytes, ...]) -> Callable[[Visit], object]:
    """Return a script: some replies in plain text, then a whole conversation under TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    rest = (OK, OK, OK, START, OK, b"221 bye\r\n") if first else (GREETING, OK, OK, OK, START, OK, b"221 bye\r\n")

    def serve(visit: Visit) -> None:
        for line in first:
            visit.say(line)
            visit.connection.recv(1000)
        if first:
            visit.say(b"220 go ahead\r\n")
        with context.wrap_socket(visit.connection, server_side=True) as secure, secure.makefile("rb") as commands:
            for number, line in enumerate(rest):
                if number or first:
                    command = commands.readline()
                    while rest[number - 1] == START and command not in (b".\r\n", b""):
                        command = commands.readline()
                    SEEN.append(command)
                secure.sendall(line)

    return serve


CONVERSATIONS = [("smtps", ()), ("smtp+starttls", (GREETING, b"250-hi\r\n250 STARTTLS\r\n"))]


@pytest.mark.parametrize(("scheme", "first"), CONVERSATIONS)
def test_a_trusted_server_is_spoken_to_under_tls(
    scheme: str, first: tuple[bytes, ...], pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = ssl.create_default_context(cafile=str(pair.certificate))
    monkeypatch.setattr(sockets, "tls", lambda: context)
    SEEN.clear()
    with Scripted(secured(pair, first=first)) as server:
        assert send(email(f"{scheme}://localhost:{server.port}")) == Confirmed({"message_id": ID}, ID)
    assert b"mail FROM:<billing@shop.example>" in b"".join(SEEN)
    with Scripted(secured(pair, first=first)) as server:
        assert isinstance(send(email(f"{scheme}://127.0.0.1:{server.port}")), NotSent)  # another host's certificate


@pytest.mark.parametrize(("scheme", "first"), CONVERSATIONS)
def test_an_untrusted_server_gets_nothing(scheme: str, first: tuple[bytes, ...], pair: Pair) -> None:
    SEEN.clear()
    with Scripted(secured(pair, first=first)) as server:
        outcome = send(email(f"{scheme}://ada:hunter2@localhost:{server.port}"))
    assert outcome == NotSent("the mail server cannot be reached (SSLCertVerificationError)")
    assert SEEN == []


def test_a_server_without_starttls_gets_nothing_in_plain_text() -> None:
    with Scripted(replies(GREETING, OK, OK)) as server:
        outcome = send(email(f"smtp+starttls://127.0.0.1:{server.port}"))
    assert outcome == NotSent("the mail server cannot be reached (SMTPNotSupportedError)")


@pytest.mark.parametrize(("scheme", "first"), CONVERSATIONS)
def test_a_handshake_that_never_ends_is_left_at_the_deadline(
    scheme: str, first: tuple[bytes, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailserver, "DEADLINE", 0.4)
    lines = (*first, b"220 go ahead\r\n") if first else ()
    script = replies(*lines, then=lambda visit: visit.drip(b"\x16\x03\x03\x10\x00" + b"\0" * 4096))
    with Scripted(script) as server, within(0.4):
        assert isinstance(send(email(f"{scheme}://localhost:{server.port}")), NotSent)


# The log


@pytest.mark.parametrize(
    "raw",
    [
        answer("404 Not Found", b"<html>"), answer("404 Not Found", b"{}"), answer("404 Not Found", b'{"received": 1}'),
        answer("404 Not Found", b'{"received": false}'), answer("404 Not Found", b'{"received": -1}'),
        answer("404 Not Found", b'{"received": 0.0}'), answer("200 OK", b'{"received": true}'),
        answer("200 OK", b'{"received": 0}'), answer("200 OK", b"[" * 100_000), answer("200 OK", b"\xff"),
        answer("301 Moved", b'{"received": 1}', "Location: /"), answer("500 Error", b'{"received": 0}'),
        b"HTTP/1.1 404 Not Found\r\nContent-Length: 99\r\n\r\n{\"received\": 0}", b"",
    ],
    ids=lambda raw: raw[9:12].decode(),
)  # fmt: skip
def test_only_the_logs_own_word_says_anything(raw: bytes) -> None:
    with Scripted(lambda visit: visit.read().say(raw)) as server:
        provider = email("smtp://127.0.0.1:1", sent_log_url=server.url)
        assert isinstance(provider.lookup(KEY, request(provider)), NotKnown)
        assert len(server.requests) == 1


@pytest.mark.parametrize("script", [Visit.hang, lambda visit: visit.read().drip(answer("200 OK", b"x" * 999))])
def test_a_lookup_ends_too(script: Callable[[Visit], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailserver, "LOOKUP_TIMEOUT", 0.4)
    with Scripted(script) as server, within(0.4):
        provider = email("smtp://127.0.0.1:1", sent_log_url=server.url)
        assert provider.lookup(KEY, request(provider)) == NotKnown("the sent log did not answer (TimeoutError)")


def test_a_log_that_is_away_says_nothing() -> None:
    provider = email("smtp://127.0.0.1:1", sent_log_url=f"http://127.0.0.1:{closed_port()}")
    assert provider.lookup(KEY, request(provider)) == NotKnown("the sent log did not answer (ConnectionRefusedError)")


# Bytes


def test_the_bytes_do_not_depend_on_the_order_and_the_essence_not_on_the_text() -> None:
    provider = email("smtp://127.0.0.1:1")
    given = provider.letter(LETTER, ACCEPTED)
    encoded = provider.encode(given)
    assert provider.encode(dict(reversed(given.items()))) == encoded
    assert provider.essence(encoded) == b'["ada@example.com","Invoice INV-000001"]'
    assert provider.essence(provider.encode({**given, "text": "x", "date": "y", "attachments": {}})) == (
        provider.essence(encoded)
    )
    for change in ({"recipient": "eve@example.com"}, {"subject": "Invoice INV-000002"}):
        assert provider.essence(provider.encode({**given, **change})) != provider.essence(encoded)
