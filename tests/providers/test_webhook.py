"""Signed webhooks to a real receiver, which verifies them with the Standard Webhooks library."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests
from pydantic import SecretStr, ValidationError
from standardwebhooks import Webhook as Signature
from standardwebhooks import WebhookVerificationError

from local.receiver import KINDS, Receiver
from shared.errors import ConfigError
from shared.providers import Ambiguous, Confirmed, NotKnown, NotSent, Outcome, Rejected, webhook
from shared.providers.webhook import Webhook, WebhookSettings
from tests.local.process import ServerProcess
from tests.providers.clock import within
from tests.providers.scripted import Scripted, Visit, answer, closed_port

KEY = "0f" * 32  # a provider key, as the ledger makes it
ID = f"msg_{'0f' * 16}"
SECRET = "whsec_" + base64.b64encode(b"hunter2 and nobody else.").decode()
EVENT = {"type": "invoice.generated", "timestamp": "2026-03-01T12:00:00+00:00", "data": {"key": "naïve £"}}


@dataclass
class Application:
    """A running receiver and a provider that tells it things."""

    receiver: Receiver
    url: str
    webhook: Webhook

    def wrong(self, kind: str, **how: Any) -> None:
        self.receiver.faults.order({"next": [{"kind": kind, **how}]})

    def send(self, key: str = KEY) -> Outcome:
        return self.webhook.send(key, self.webhook.encode(EVENT))


def provider(url: str, secret: str = SECRET) -> Webhook:
    return Webhook(WebhookSettings(webhook_url=url, webhook_secret=SecretStr(secret)))


def send(url: str) -> Outcome:
    told = provider(url)
    return told.send(KEY, told.encode(EVENT))


@pytest.fixture
def application() -> Iterator[Application]:
    receiver = Receiver(SECRET)
    url = f"http://127.0.0.1:{receiver.start()}/webhooks"
    yield Application(receiver, url, provider(url))
    receiver.stop()


# What arrives


def test_what_is_told_is_verified_and_acted_on(application: Application) -> None:
    assert application.send() == Confirmed({"webhook_id": ID, "status": 200}, ID)
    assert application.receiver.effects() == {ID: EVENT}


def test_the_signature_is_the_librarys_over_id_time_and_body(application: Application) -> None:
    application.send()
    (request,) = application.receiver.requests
    headers, body = request["headers"], request["body"]
    assert body.encode() == application.webhook.encode(EVENT)
    assert Signature(SECRET).verify(body, headers) == EVENT
    assert headers["webhook-signature"].startswith("v1,")
    assert abs(int(headers["webhook-timestamp"]) - time.time()) < 60
    other = Signature("whsec_" + base64.b64encode(b"x" * 24).decode())
    for verifier, changed in (
        (other, {}),
        (Signature(SECRET), {"webhook-id": "msg_x"}),
        (Signature(SECRET), {"webhook-timestamp": str(int(headers["webhook-timestamp"]) - 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            verifier.verify(body, {**headers, **changed})
    with pytest.raises(WebhookVerificationError):
        Signature(SECRET).verify(body + " ", headers)


def test_a_second_attempt_keeps_id_and_body_and_signs_anew(
    application: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> Later:
            return cls.fromtimestamp(time.time() + 60, tz)

    application.wrong("error_after_commit")
    application.send()
    monkeypatch.setattr(webhook, "datetime", Later)
    assert isinstance(application.send(), Confirmed)
    first, second = application.receiver.requests
    assert first["body"] == second["body"]
    for name, same in (("webhook-id", True), ("webhook-timestamp", False), ("webhook-signature", False)):
        assert (first["headers"][name] == second["headers"][name]) is same
    moved = int(second["headers"]["webhook-timestamp"]) - int(first["headers"]["webhook-timestamp"])
    assert moved >= 60
    assert application.receiver.received == {ID: 2}
    assert len(application.receiver.effects()) == 1


def test_another_key_is_another_id(application: Application) -> None:
    application.send()
    application.send("1e" * 32)
    assert len(application.receiver.effects()) == 2


def test_another_secret_is_not_acted_on(application: Application) -> None:
    stranger = provider(application.url, "whsec_" + base64.b64encode(b"x" * 24).decode())
    assert stranger.send(KEY, stranger.encode(EVENT)) == NotSent("401")
    assert application.receiver.effects() == {}


@pytest.mark.parametrize(
    "headers",
    [{}, {"webhook-id": "a"}, {"webhook-id": "a", "webhook-timestamp": "1", "webhook-signature": "v1,AA=="},
     {"webhook-id": "a", "webhook-timestamp": "x", "webhook-signature": "v1"}],
)  # fmt: skip
def test_the_receiver_refuses_what_is_not_signed(application: Application, headers: dict[str, str]) -> None:
    assert requests.post(application.url, b"{}", headers=headers, timeout=30).status_code in (400, 401)
    assert application.receiver.effects() == {}


# What each answer proves

SOON = timedelta(seconds=7)


@pytest.mark.parametrize(
    ("kind", "how", "expected", "acted"),
    [
        ("gone", {}, Rejected("410"), 0),
        ("rate_limited", {"retry_after": "7"}, NotSent("429", SOON), 0),
        ("error_unsaved", {}, Ambiguous("500"), 0),
        ("error_after_commit", {}, Ambiguous("500"), 1),
        ("drop_before_commit", {}, Ambiguous("no answer: RemoteDisconnected"), 0),
        ("drop_after_commit", {}, Ambiguous("no answer: RemoteDisconnected"), 1),
    ],
)
def test_a_fault_proves_no_more_than_it_does(
    application: Application, kind: str, how: dict[str, str], expected: Outcome, acted: int
) -> None:
    application.wrong(kind, **how)
    assert application.send() == expected
    assert len(application.receiver.requests) == 1
    assert len(application.receiver.effects()) == acted


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("200 OK", Confirmed({"webhook_id": ID, "status": 200}, ID)),
        ("202 Accepted", Confirmed({"webhook_id": ID, "status": 202}, ID)),
        ("204 No Content", Confirmed({"webhook_id": ID, "status": 204}, ID)),
        ("299 Fine", Confirmed({"webhook_id": ID, "status": 299}, ID)),
        ("400 Bad Request", NotSent("400")),
        ("401 Unauthorized", NotSent("401")),
        ("404 Not Found", NotSent("404")),
        ("408 Request Timeout", Ambiguous("408")),
        ("409 Conflict", Ambiguous("409")),
        ("410 Gone", Rejected("410")),
        ("429 Too Many", NotSent("429")),
        ("500 Error", Ambiguous("500")),
        ("502 Bad Gateway", Ambiguous("502")),
        ("503 Unavailable", Ambiguous("503")),
        ("504 Gateway Timeout", Ambiguous("504")),
        ("599 Odd", Ambiguous("599")),
    ],
)
def test_a_status_is_taken_for_what_it_proves(status: str, expected: Outcome) -> None:
    with Scripted(lambda visit: visit.read().say(answer(status, b"" if status[:3] == "204" else b"x"))) as server:
        assert send(server.url) == expected
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See Other", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_never_followed_and_proves_that_it_was_not_taken(status: str) -> None:
    with Scripted(lambda visit: visit.read().say(answer("200 OK"))) as elsewhere:
        moved = answer(status, b"", f"Location: {elsewhere.url}/webhooks")
        with Scripted(lambda visit: visit.read().say(moved)) as server:
            assert send(server.url) == NotSent(status[:3])
            assert len(server.requests) == 1
        assert elsewhere.visits == []


def test_a_wait_may_be_a_date_and_may_come_with_a_503() -> None:
    then = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    for status, kind in (("429 Too Many", NotSent), ("503 Unavailable", Ambiguous)):
        raw = answer(status, b"", f"Retry-After: {then}")
        with Scripted(lambda visit, raw=raw: visit.read().say(raw)) as server:  # type: ignore[misc]
            outcome = send(server.url)
            assert isinstance(outcome, kind)
            assert outcome.after is not None
            assert timedelta(minutes=4) < outcome.after <= timedelta(minutes=5)


def test_a_refused_connection_proves_that_nothing_was_sent() -> None:
    assert send(f"http://127.0.0.1:{closed_port()}/") == NotSent("not reached: ConnectionRefusedError")


@pytest.mark.parametrize(
    "script",
    [
        Visit.hang,
        lambda visit: visit.read().drip(answer("200 OK", b"x" * 99)),
        lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n\r\n").drip(b"x" * 99),
        lambda visit: visit.read().repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    ],
)
def test_a_send_ends_by_the_timeout(script: Callable[[Visit], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Webhook, "timeout", timedelta(seconds=0.4))
    with Scripted(script) as server, within(0.4):
        assert send(server.url) == Ambiguous("no answer: TimeoutError")


@pytest.mark.parametrize("kind", ["hang_before_commit", "hang_after_commit", "drip"])
def test_the_receivers_own_hangs_and_drips_end_by_the_timeout(
    application: Application, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Webhook, "timeout", timedelta(seconds=0.4))
    application.wrong(kind)
    with within(0.4):
        assert application.send() == Ambiguous("no answer: TimeoutError")


def test_a_receiver_cannot_be_asked(application: Application) -> None:
    application.send()
    assert isinstance(application.webhook.lookup(KEY, application.webhook.encode(EVENT)), NotKnown)
    assert application.webhook.visibility is None


# Bytes


def test_the_bytes_do_not_depend_on_the_order_and_the_essence_not_on_the_time(application: Application) -> None:
    told = application.webhook
    encoded = told.encode(EVENT)
    assert told.encode(dict(reversed(EVENT.items()))) == encoded
    assert json.loads(encoded) == EVENT
    assert told.essence(told.encode({**EVENT, "timestamp": "later"})) == told.essence(encoded)
    assert told.essence(told.encode({**EVENT, "data": {}})) != told.essence(encoded)
    assert told.essence(told.encode({**EVENT, "type": "x"})) != told.essence(encoded)


# Secrets


@pytest.mark.parametrize("size", [24, 25, 32, 64])
def test_a_secret_of_the_right_size_is_taken_padded_or_not(size: int) -> None:
    encoded = base64.b64encode(b"k" * size).decode()
    for text in (f"whsec_{encoded}", f"whsec_{encoded.rstrip('=')}"):
        settings = {"WEBHOOK_URL": "https://shop.example/hook", "WEBHOOK_SECRET": text}
        Webhook(WebhookSettings.from_environment(settings))


@pytest.mark.parametrize(
    "secret",
    [
        "hunter2", "whsec_", "whsec_hunter2", "whsec_!!!!hunter2!!!!", f"whsk_{SECRET[6:]}", SECRET[6:], f"{SECRET}!",
        f"{SECRET[:12]} {SECRET[12:]}", "whsec_" + base64.b64encode(b"hunter2" * 3).decode(),
        "whsec_" + base64.b64encode(b"hunter2" * 10).decode(), f"whsec_{'ü' * 40}",
    ],
)  # fmt: skip
def test_a_malformed_secret_is_refused_at_configuration_without_its_value(secret: str) -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookSettings.from_environment({"WEBHOOK_URL": "https://shop.example/hook", "WEBHOOK_SECRET": secret})
    (problem,) = caught.value.problems
    assert problem.startswith("WEBHOOK_SECRET: is not a webhook secret")
    assert "hunter2" not in problem
    assert SECRET[6:16] not in problem
    with pytest.raises(ValidationError) as invalid:
        provider("https://shop.example/hook", secret)
    assert "hunter2" not in str(invalid.value)


def test_a_missing_or_wrong_url_is_told() -> None:
    with pytest.raises(ConfigError) as caught:
        WebhookSettings.from_environment({"WEBHOOK_URL": "shop.example"})
    assert [item.partition(":")[0] for item in caught.value.problems] == ["WEBHOOK_URL", "WEBHOOK_SECRET"]


def test_no_secret_is_in_a_repr_or_a_reason(application: Application) -> None:
    settings = WebhookSettings(webhook_url=application.url, webhook_secret=SecretStr(SECRET))
    texts = [repr(settings), str(settings), repr(application.webhook), settings.model_dump_json()]
    for kind in sorted(KINDS - {"hang_before_commit", "hang_after_commit", "drip"}):
        application.wrong(kind)
        texts.append(repr(application.send()))
    for text in texts:
        assert SECRET[6:] not in text
        assert "naïve" not in text


# As a process


def test_what_was_acted_on_survives_a_kill(tmp_path: Path) -> None:
    process = ServerProcess("local.receiver", "--secret", SECRET, "--data", str(tmp_path))
    told = provider(process.addresses["webhooks"])
    assert isinstance(told.send(KEY, told.encode(EVENT)), Confirmed)
    process.kill()
    process.restart()
    url = process.addresses["webhooks"]
    told = provider(url)
    assert isinstance(told.send(KEY, told.encode(EVENT)), Confirmed)
    seen = requests.get(url.replace("/webhooks", "/_control/received"), timeout=30).json()
    assert (seen["effects"], seen["received"]) == ({ID: EVENT}, {ID: 1})
    assert process.end() == 0
