"""E-mails as bytes, and sending them: to the real sink, and to servers that misbehave at every step."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email import message_from_bytes, policy
from email.message import EmailMessage
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from local.mail import MailSink
from local.postgres import free_port
from shared.errors import ConfigError, PermanentError, UnavailableError
from shared.providers import mailserver
from shared.providers.mailserver import (
    MailNotSentError,
    MailOutcomeUnknownError,
    MailRefusedError,
    SentLogUnavailableError,
    send,
    was_sent,
)
from shared.providers.message import InvalidMessageError, Letter, Mail, compose, message_id
from shared.providers.settings import MailSettings

KEY = "0f" * 32  # a provider key, as the ledger makes it
SENDER = "billing@shop.example"
ACCEPTED = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
PDF = b"%PDF-1.4 \x00\xff\n.\r\n..\n"


def letter(**changes: object) -> Letter:
    values: dict[str, object] = {
        "recipient": "müller@example.com".replace("ü", "u"),
        "recipient_name": "Müller & Söhne, Łódź",
        "subject": "Invoice INV-000001",
        "text": "Dear Müller,\n\n.\n£ 15.30\n",
        "attachments": {"INV-000001.pdf": PDF},
    }
    return Letter(**(values | changes))  # type: ignore[arg-type]


def mail(**changes: object) -> Mail:
    return compose(letter(**changes), message_id(KEY), SENDER, ACCEPTED)


def parsed(content: bytes) -> EmailMessage:
    message = message_from_bytes(content, policy=policy.default)
    assert isinstance(message, EmailMessage)
    assert message.defects == []
    return message


def settings_for(port: int, sent_log: str | None = None) -> MailSettings:
    url = SecretStr(f"smtp://127.0.0.1:{port}")
    return MailSettings(smtp_url=url, mail_from=SENDER, sent_log_url=sent_log)


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[MailSink]:
    with MailSink(tmp_path) as sink:
        yield sink


def test_a_message_says_what_the_letter_says() -> None:
    message = parsed(mail().content)
    assert message["To"] == '"Müller & Söhne, Łódź" <muller@example.com>'
    assert (message["Subject"], message["From"]) == ("Invoice INV-000001", SENDER)
    assert message["Date"].datetime == ACCEPTED
    body = message.get_body()
    assert body is not None
    assert body.get_content().splitlines() == ["Dear Müller,", "", ".", "£ 15.30"]
    (attached,) = message.iter_attachments()
    assert (attached.get_filename(), attached.get_content_type(), attached.get_content()) == (
        "INV-000001.pdf",
        "application/pdf",
        PDF,
    )


def test_the_same_letter_gives_the_same_bytes() -> None:
    assert mail() == mail()
    assert mail().content == mail().content


def test_a_message_id_is_made_of_the_key_alone() -> None:
    first = message_id(KEY)
    assert first == message_id(KEY)
    assert first != message_id("1" + KEY[1:])
    assert re.fullmatch(r"[0-9a-f]{40}@id\.echoproof\.invalid", first)


@pytest.mark.parametrize("field", ["recipient", "recipient_name", "subject"])
@pytest.mark.parametrize("injection", ["a\r\nBcc: evil@example.com", "a\nBcc: evil@example.com", "a\r\n\r\nbody"])
def test_no_value_can_add_a_header(field: str, injection: str) -> None:
    with pytest.raises(InvalidMessageError) as caught:
        mail(**{field: injection})
    assert "evil" not in str(caught.value)


@pytest.mark.parametrize("recipient", ["a@example.com, b@example.com", "a@example.com>", "<a@example.com>", "", "a"])
def test_a_recipient_is_one_plain_address(recipient: str) -> None:
    with pytest.raises(InvalidMessageError):
        mail(recipient=recipient)


def test_a_text_that_looks_like_a_boundary_stays_text() -> None:
    boundary = parsed(mail().content).get_boundary()
    message = parsed(mail(text=f"--{boundary}\n--{boundary}--\nend\n").content)
    assert len(list(message.iter_attachments())) == 1
    body = message.get_body()
    assert body is not None
    assert body.get_content().splitlines()[-1] == "end"


def test_a_message_shows_no_address_in_its_repr() -> None:
    assert "example" not in repr(mail()).replace(mail().message_id, "")


def test_what_is_sent_arrives_unchanged(sink: MailSink) -> None:
    settings = settings_for(sink.smtp_port, sink.sent_log_url)
    message = mail()
    assert not was_sent(settings, message.message_id)
    send(settings, message)
    assert was_sent(settings, message.message_id)
    assert sink.log.contents(message.message_id) == [message.content]
    found = sink.log.find(message.message_id)
    assert found is not None
    assert (found["recipients"], found["received"]) == (["muller@example.com"], 1)


def test_a8_an_answer_lost_after_the_message_is_an_unknown_outcome(tmp_path: Path) -> None:
    with MailSink(tmp_path, fault=lambda *_: "drop") as sink:
        settings = settings_for(sink.smtp_port, sink.sent_log_url)
        with pytest.raises(MailOutcomeUnknownError):
            send(settings, mail())
        assert was_sent(settings, mail().message_id)


@pytest.mark.parametrize(
    ("answer", "error"),
    [("451 try later", MailNotSentError), ("552 too big for a@example.com", MailRefusedError)],
)
def test_a_no_to_the_message_is_told_without_the_servers_text(
    tmp_path: Path, answer: str, error: type[Exception]
) -> None:
    with MailSink(tmp_path, fault=lambda *_: answer) as sink, pytest.raises(error) as caught:
        send(settings_for(sink.smtp_port), mail())
    assert answer[:3] in str(caught.value)
    assert "example" not in str(caught.value)


@contextlib.contextmanager
def scripted(*answers: bytes) -> Iterator[int]:
    """Serve one connection: the greeting, then an answer to each line, then hang up; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                for answer in answers:
                    connection.sendall(answer)
                    lines.readline()

        thread = threading.Thread(target=serve)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


GREETING, OK, START = b"220 hello\r\n", b"250 ok\r\n", b"354 go on\r\n"


@pytest.mark.parametrize(
    ("answers", "error"),
    [
        ([], MailNotSentError),
        ([b"554 no service for you\r\n"], MailNotSentError),
        ([b"hello?\r\n"], MailNotSentError),
        ([GREETING], MailNotSentError),
        ([GREETING, OK], MailNotSentError),
        ([GREETING, OK, b"452 full\r\n", OK], MailNotSentError),
        ([GREETING, OK, b"550 unknown sender\r\n", OK], MailRefusedError),
        ([GREETING, OK, OK], MailNotSentError),
        ([GREETING, OK, OK, b"450 greylisted\r\n", OK], MailNotSentError),
        ([GREETING, OK, OK, b"550 no such user\r\n", OK], MailRefusedError),
        ([GREETING, OK, OK, OK], MailOutcomeUnknownError),
        ([GREETING, OK, OK, OK, b"554 no\r\n", OK], MailRefusedError),
        ([GREETING, OK, OK, OK, b"451 later\r\n", OK], MailNotSentError),
        ([GREETING, OK, OK, OK, START], MailOutcomeUnknownError),
    ],
)
def test_a_server_that_fails_at_any_step_is_told_apart(answers: list[bytes], error: type[Exception]) -> None:
    with scripted(*answers) as port, pytest.raises(error):
        send(settings_for(port), mail())


def test_a_server_that_hangs_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailserver, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(MailNotSentError, match="cannot be reached"):
        send(settings_for(server.getsockname()[1]), mail())


def test_a_server_that_is_away_is_retryable_and_a_refusal_is_not() -> None:
    with pytest.raises(MailNotSentError, match="ConnectionRefusedError"):
        send(settings_for(free_port()), mail())
    assert issubclass(MailNotSentError, UnavailableError)
    assert issubclass(MailRefusedError, PermanentError)


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (404, b"not found"), (404, b"{}"), (404, b"[]"), (404, b'{"received": 1}'),
        (200, b"{}"), (200, b'{"received": 0}'), (200, b'{"received": "1"}'), (200, b"<html>"),
        (500, b'{"received": 0}'), (301, b'{"received": 1}'),
    ],
)  # fmt: skip
def test_only_the_logs_own_answer_proves_anything(status: int, body: bytes) -> None:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(SentLogUnavailableError):
            was_sent(settings_for(25, f"http://127.0.0.1:{server.server_port}"), "x@example.com")
        thread.join()


def test_a_log_that_is_away_proves_nothing() -> None:
    with pytest.raises(SentLogUnavailableError, match="ConnectionRefusedError"):
        was_sent(settings_for(25, f"http://127.0.0.1:{free_port()}"), "x@example.com")


def test_settings_tell_every_problem_and_no_password() -> None:
    environment = {"SMTP_URL": "http://user:hunter2@host", "MAIL_FROM": "nobody", "SENT_LOG_URL": "ftp://log"}
    with pytest.raises(ConfigError) as caught:
        MailSettings.from_environment(environment)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == list(environment)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("smtp://mail", ("smtp", "mail", 25, None, None)),
        ("smtp+starttls://u%40x:p%3A@mail", ("smtp+starttls", "mail", 587, "u@x", "p:")),
        ("smtps://u:p@mail:2465/", ("smtps", "mail", 2465, "u", "p")),
    ],
)
def test_the_servers_url_is_taken_apart(url: str, expected: tuple[object, ...]) -> None:
    settings = MailSettings.from_environment({"SMTP_URL": url, "MAIL_FROM": SENDER})
    assert settings.server() == expected
    assert "p:" not in repr(settings)
