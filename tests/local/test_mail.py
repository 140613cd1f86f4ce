"""The mail sink: what it acknowledged is kept, and every reception is counted."""

from __future__ import annotations

import json
import os
import signal
import smtplib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from local.mail import MailSink

ROOT = Path(__file__).parents[2]
MESSAGE = b"Message-ID: <one@example.com>\r\nSubject: =?utf-8?q?R=C3=A9sum=C3=A9?=\r\n\r\nText\r\n"


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[MailSink]:
    with MailSink(tmp_path) as sink:
        yield sink


def post(port: int, content: bytes = MESSAGE, recipients: tuple[str, ...] = ("a@example.com",)) -> None:
    with smtplib.SMTP("127.0.0.1", port, timeout=5) as client:
        client.sendmail("shop@example.com", recipients, content)


def ask(sink: MailSink, path: str) -> requests.Response:
    return requests.get(sink.sent_log_url + path, timeout=5)


def test_an_accepted_message_is_in_the_log(sink: MailSink) -> None:
    post(sink.smtp_port, recipients=("a@example.com", "b@example.com"))
    answer = ask(sink, "/messages/one@example.com")
    assert (answer.status_code, answer.json()) == (
        200,
        {
            "id": "one@example.com",
            "received": 1,
            "recipients": ["a@example.com", "b@example.com"],
            "subject": "Résumé",
            "attachments": [],
        },
    )
    assert sink.log.contents("one@example.com") == [MESSAGE]


def test_a_message_that_never_came_is_404(sink: MailSink) -> None:
    answer = ask(sink, "/messages/other@example.com")
    assert (answer.status_code, answer.json()) == (404, {"id": "other@example.com", "received": 0})


def test_every_reception_of_the_same_message_counts(sink: MailSink) -> None:
    for _ in range(3):
        post(sink.smtp_port)
    assert ask(sink, "/messages/%3Cone@example.com%3E").json()["received"] == 3
    listing = ask(sink, "/messages").json()
    assert (listing["count"], [m["received"] for m in listing["messages"]]) == (3, [3])


def test_a_message_without_an_id_is_kept_under_its_hash(sink: MailSink) -> None:
    post(sink.smtp_port, b"Subject: none\r\n\r\n")
    (message,) = ask(sink, "/messages").json()["messages"]
    assert message["id"].startswith("sha256:")
    assert ask(sink, f"/messages/{message['id']}").status_code == 200


def test_the_listing_has_pages(sink: MailSink) -> None:
    post(sink.smtp_port)
    assert ask(sink, "/messages?start=1").json() == {"count": 1, "messages": []}
    assert ask(sink, "/messages?start=x").status_code == 400


def test_a_dropped_answer_leaves_the_message_in_the_log(tmp_path: Path) -> None:
    with MailSink(tmp_path, fault=lambda _, received: "drop" if received == 1 else None) as sink:
        with pytest.raises(smtplib.SMTPServerDisconnected):
            post(sink.smtp_port)
        assert ask(sink, "/messages/one@example.com").json()["received"] == 1
        post(sink.smtp_port)
        assert ask(sink, "/messages/one@example.com").json()["received"] == 2


def test_stopping_closes_the_connections_that_clients_left_open(tmp_path: Path) -> None:
    sink = MailSink(tmp_path).start()
    client = smtplib.SMTP("127.0.0.1", sink.smtp_port, timeout=5)
    client.ehlo()
    sink.stop()
    with pytest.raises((OSError, smtplib.SMTPException)):
        client.noop()
    client.close()


def test_a_port_in_use_is_an_error(sink: MailSink, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="address already in use"):
        MailSink(tmp_path / "second", smtp_port=sink.smtp_port).start()


def start(data: Path) -> tuple[subprocess.Popen[str], int, str]:
    command = [sys.executable, "-m", "local.mail", "--data", str(data)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    urls = json.loads(process.stdout.readline())
    return process, int(urls["smtp"].rpartition(":")[2]), urls["sent_log"]


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_what_was_accepted_survives_the_process(tmp_path: Path, number: signal.Signals, code: int) -> None:
    process, port, _ = start(tmp_path)
    post(port)
    os.kill(process.pid, number)
    assert process.wait(timeout=10) == code
    assert process.stdout is not None
    assert process.stdout.read() == ""
    process.stdout.close()
    again, port, url = start(tmp_path)
    post(port)
    assert requests.get(f"{url}/messages/one@example.com", timeout=5).json()["received"] == 2
    again.terminate()
    assert again.wait(timeout=10) == 0
    again.communicate()
