"""Payments through the official SDK against the local provider: what each answer proves, and nothing sent twice."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from pydantic import SecretStr

from local.payments import HORIZON
from shared.errors import ConfigError
from shared.providers import Absent, Ambiguous, Confirmed, Found, Lookup, NotKnown, NotSent, Outcome, Rejected
from shared.providers.payments import Payments, PaymentSettings
from tests.providers.bank import Bank
from tests.providers.clock import within
from tests.providers.scripted import Scripted, Visit, answer, closed_port

KEY = "0f" * 32  # a provider key, as the ledger makes it
SECRET = "sk_test_hunter2"
REQUEST = {"amount": 1530, "currency": "gbp", "payment_method": "pm_card_visa", "description": "INV-000001"}
PAYER = "cus_Ada-Lovelace"
JSON = "Content-Type: application/json"


def account(url: str, **settings: Any) -> Payments:
    return Payments(PaymentSettings(payments_key=SecretStr(SECRET), payments_url=url, **settings))


@pytest.fixture
def payments(bank: Bank) -> Payments:
    return account(bank.url)


def send(payments: Payments, key: str = KEY, **changes: Any) -> Outcome:
    return payments.send(key, payments.encode({**REQUEST, **changes}))


def lookup(payments: Payments, key: str = KEY) -> Lookup:
    return payments.lookup(key, payments.encode(REQUEST))


# What each answer proves


def test_a_payment_is_confirmed_with_what_the_provider_says(bank: Bank, payments: Payments) -> None:
    outcome = send(payments)
    assert isinstance(outcome, Confirmed)
    (paid,) = bank.ledger()
    assert outcome.reference == paid["id"]
    assert outcome.response == {"id": paid["id"], "status": "succeeded", "amount": 1530, "currency": "gbp"}
    json.dumps(outcome.response)


def test_the_same_key_again_is_the_same_confirmation_and_one_payment(bank: Bank, payments: Payments) -> None:
    assert send(payments) == send(payments)
    assert len(bank.ledger()) == 1
    first, second = bank.server.requests
    assert first["body"] == second["body"]
    assert first["key"] == second["key"] == KEY


SOON = timedelta(seconds=7)


@pytest.mark.parametrize(
    ("kind", "how", "expected"),
    [
        ("rate_limited", {"retry_after": "7"}, NotSent("429", SOON)),
        ("rate_limited", {"retry_after": "0"}, NotSent("429", timedelta(seconds=1))),
        ("rate_limited", {"retry_after": "soon"}, NotSent("429")),
        ("unauthorised", {}, NotSent("401")),
        ("decline", {}, Rejected("402 card_declined")),
        ("conflict", {}, Ambiguous("409: the same key is in progress")),
        ("error_unsaved", {}, Ambiguous("500")),
        ("error_saved", {}, Ambiguous("500")),
        ("error_after_commit", {}, Ambiguous("500")),
        ("drop_before_commit", {}, Ambiguous("no answer: RemoteDisconnected")),
        ("drop_after_commit", {}, Ambiguous("no answer: RemoteDisconnected")),
    ],
)
def test_a_fault_proves_no_more_than_it_does(
    bank: Bank, payments: Payments, kind: str, how: dict[str, str], expected: Outcome
) -> None:
    bank.wrong(kind, **how)
    assert send(payments) == expected
    assert len(bank.server.requests) == 1


def test_a_date_to_come_back_at_is_a_wait(bank: Bank, payments: Payments) -> None:
    bank.wrong("rate_limited", retry_after=format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True))
    outcome = send(payments)
    assert isinstance(outcome, NotSent)
    assert outcome.after is not None
    assert timedelta(minutes=4) < outcome.after <= timedelta(minutes=5)


@pytest.mark.parametrize("kind", ["error_saved", "error_after_commit"])
def test_a_saved_500_will_not_change_so_that_only_a_lookup_can_tell(bank: Bank, payments: Payments, kind: str) -> None:
    bank.wrong(kind)
    assert send(payments) == Ambiguous("500", final=False)
    assert send(payments) == Ambiguous("500", final=True)
    assert isinstance(lookup(payments), Found if kind == "error_after_commit" else Absent)


def test_other_parameters_under_a_key_are_no_proof_of_anything(bank: Bank, payments: Payments) -> None:
    send(payments)
    outcome = send(payments, amount=1)
    assert isinstance(outcome, Ambiguous)
    assert outcome.final
    assert isinstance(lookup(payments), Found)
    assert len(bank.ledger()) == 1


def test_a_declined_payment_stays_declined(bank: Bank, payments: Payments) -> None:
    bank.wrong("decline")
    assert send(payments) == send(payments) == Rejected("402 card_declined")


def test_a_request_that_is_not_valid_is_a_no(payments: Payments) -> None:
    assert send(payments, amount=-1) == Rejected("400 parameter_invalid_integer")


def test_two_sends_at_once_pay_once(bank: Bank, payments: Payments) -> None:
    bank.wrong("hang_before_commit", seconds=0.6)
    outcomes: list[Outcome] = []
    slow = threading.Thread(target=lambda: outcomes.append(send(payments)))
    slow.start()
    while not bank.server.requests:
        time.sleep(0.01)
    assert send(payments) == Ambiguous("409: the same key is in progress")
    slow.join()
    assert isinstance(outcomes[0], Confirmed)
    assert len(bank.ledger()) == 1


def test_a_refused_connection_proves_that_nothing_was_sent() -> None:
    assert send(account(f"http://127.0.0.1:{closed_port()}")) == NotSent("not reached: ConnectionRefusedError")


def test_an_unknown_host_proves_that_nothing_was_sent() -> None:
    assert send(account("http://no-such-host.invalid")) == NotSent("not reached: gaierror")


# Answers that a proxy, an outage or another version of the provider may give

PROXY = answer("502 Bad Gateway", b"<html>Bad gateway</html>", "Content-Type: text/html", "Retry-After: 7")
PAID: dict[str, Any] = {"id": "pi_1", "object": "payment_intent", "status": "succeeded", "amount": 1, "currency": "gbp"}


def intent(**changes: Any) -> bytes:
    return answer("200 OK", json.dumps({**PAID, **changes}).encode(), JSON)


def problem(status: str, **told: Any) -> bytes:
    return answer(status, json.dumps({"error": told}).encode(), JSON)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (PROXY, Ambiguous("502")),
        (answer("503 Service Unavailable"), Ambiguous("503")),
        (answer("504 Gateway Timeout", b"null", JSON), Ambiguous("504")),
        (answer("408 Request Timeout"), Ambiguous("408")),
        (answer("412 Precondition Failed"), Ambiguous("412", final=True)),
        (answer("302 Found", b"", "Location: http://127.0.0.1:1/"), Ambiguous("302")),
        (answer("429 Too Many Requests", b"<html>", "Retry-After: 7"), NotSent("429")),
        (answer("403 Forbidden", b"<html>"), NotSent("403")),
        (problem("429 Too Many", type="invalid_request_error", code="lock_timeout"), NotSent("429")),
        (problem("400 Bad", type="invalid_request_error", code="rate_limit"), NotSent("429")),
        (problem("404 Not Found", code="resource_missing"), Rejected("404 resource_missing")),
        (problem("424 Failed", type="api_error"), Ambiguous("424")),
        (answer("404 Not Found", b"<html>no such page"), Ambiguous("404")),
        (answer("400 Bad Request", b"<html>cannot parse"), Ambiguous("400")),
        (answer("413 Too Large"), Ambiguous("413")),
        (problem("403 Forbidden", type="invalid_request_error"), NotSent("403")),
        (intent(status="processing"), Confirmed({**PAID, "status": "processing"}, "pi_1")),
        (intent(status="requires_action"), Rejected("the payment is requires_action")),
        (intent(status="canceled"), Rejected("the payment is canceled")),
        (intent(status="paid_twice"), Ambiguous("the payment is in a state that is not known")),
    ],
)
def test_an_answer_from_in_between_is_taken_for_what_it_proves(raw: bytes, expected: Outcome) -> None:
    if isinstance(expected, Confirmed):
        expected.response.pop("object", None)
    with Scripted(lambda visit: visit.read().say(raw)) as server:
        assert send(account(server.url)) == expected
        assert len(server.requests) == 1


@pytest.mark.parametrize("status", ["200 OK", "201 Created", "400 Bad Request", "500 Error", "204 No Content"])
@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"{}", b"7", b'"x"', b"\xff\xfe", b'{"error": null}', b'{"error": "x"}',
        b'{"error": ["x"]}', b'{"error": {"code": 7}}', b'{"id": "pi_1"}', b'{"status": "succeeded"}',
        b'{"object": 7, "id": 7, "status": [], "amount": {}, "currency": null}', b"[" * 100_000,
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)  # fmt: skip
def test_no_answer_makes_it_raise_or_confirm_what_is_not_said(status: str, body: bytes) -> None:
    with Scripted(lambda visit: visit.read().say(answer(status, body, JSON))) as server:
        payments = account(server.url)
        outcome = send(payments)
        assert not isinstance(outcome, Confirmed | NotSent)
        assert not isinstance(outcome, Rejected) or status.startswith("400")
        assert not isinstance(lookup(payments), Found)
        assert len(server.requests) == 2


# Bounds

DROWSY = [
    Visit.hang,
    lambda visit: visit.read().hang(),
    lambda visit: visit.read().drip(intent()),
    lambda visit: visit.read().say(b"HTTP/1.1 200 OK\r\n\r\n").drip(b" " * 9999),
    lambda visit: visit.read().repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
]


@pytest.mark.parametrize("script", DROWSY)
def test_a_send_and_a_lookup_end_by_the_timeout(script: Callable[[Visit], object]) -> None:
    with Scripted(script) as server:
        payments = account(server.url, payments_timeout=timedelta(seconds=0.4))
        with within(0.4):
            outcome = send(payments)
        assert isinstance(outcome, Ambiguous)
        assert outcome.reason.startswith("no answer: ")
        with within(0.4):
            assert isinstance(lookup(payments), NotKnown)
        assert len(server.visits) == 2


@pytest.mark.parametrize("kind", ["hang_before_commit", "hang_after_commit", "drip"])
def test_the_providers_own_hangs_and_drips_end_by_the_timeout(bank: Bank, kind: str) -> None:
    payments = account(bank.url, payments_timeout=timedelta(seconds=0.4))
    bank.wrong(kind)
    with within(0.4):
        assert send(payments) == Ambiguous("no answer: TimeoutError")
    assert len(bank.server.requests) == 1
    assert len(bank.ledger()) == (kind != "hang_before_commit")


def test_its_timeout_is_the_one_that_the_ledger_is_told(bank: Bank) -> None:
    assert account(bank.url, payments_timeout=timedelta(seconds=3)).timeout == timedelta(seconds=3)


# Lookup


def test_a_payment_whose_answer_was_lost_is_found(bank: Bank, payments: Payments) -> None:
    bank.wrong("drop_after_commit")
    send(payments)
    found = lookup(payments)
    assert isinstance(found, Found)
    confirmed = send(payments)
    assert isinstance(confirmed, Confirmed)
    assert (found.response, found.reference) == (confirmed.response, confirmed.reference)


def test_a_payment_that_was_not_made_is_absent(bank: Bank, payments: Payments) -> None:
    bank.wrong("drop_before_commit")
    send(payments)
    send(payments, key="1e" * 32)  # another's
    assert lookup(payments) == Absent()


def test_a_payment_is_found_after_its_key_was_pruned(bank: Bank, payments: Payments) -> None:
    send(payments)
    bank.advance(HORIZON + 1)
    assert isinstance(lookup(payments), Found)
    assert payments.horizon < timedelta(seconds=HORIZON)


def test_a_search_that_is_down_says_nothing(bank: Bank, payments: Payments) -> None:
    send(payments)
    bank.wrong("search_down")
    assert lookup(payments) == NotKnown("search: APIError")
    assert isinstance(lookup(payments), Found)


def test_a_search_that_is_away_says_nothing() -> None:
    assert lookup(account(f"http://127.0.0.1:{closed_port()}")) == NotKnown("search: APIConnectionError")


def test_only_a_paid_one_is_found() -> None:
    one = {"object": "payment_intent", "amount": 1, "currency": "gbp"}
    data = [{**one, "id": "pi_1", "status": "requires_payment_method"}, {**one, "id": "pi_2", "status": "succeeded"}]
    body = json.dumps({"object": "search_result", "data": data, "has_more": False, "url": "/"}).encode()
    with Scripted(lambda visit: visit.read().say(answer("200 OK", body, JSON))) as server:
        found = lookup(account(server.url))
        assert isinstance(found, Found)
        assert found.reference == "pi_2"


# Bytes


def test_the_bytes_do_not_depend_on_the_order_and_the_essence_not_on_the_words(payments: Payments) -> None:
    encoded = payments.encode(REQUEST)
    assert payments.encode(dict(reversed(REQUEST.items()))) == encoded
    assert encoded == (
        b'{"amount":1530,"confirm":true,"currency":"gbp","description":"INV-000001","payment_method":"pm_card_visa"}'
    )
    assert payments.essence(encoded) == b'{"amount":1530,"currency":"gbp","payment_method":"pm_card_visa"}'
    assert payments.essence(payments.encode({**REQUEST, "description": "x"})) == payments.essence(encoded)


@pytest.mark.parametrize(
    "change", [{"amount": 1531}, {"currency": "eur"}, {"payment_method": "pm_x"}, {"customer": "cus_1"}]
)
def test_another_payer_or_sum_is_another_payment(payments: Payments, change: dict[str, Any]) -> None:
    assert payments.essence(payments.encode({**REQUEST, **change})) != payments.essence(payments.encode(REQUEST))


def test_what_is_sent_is_what_was_encoded_and_the_key_to_find_it_by(bank: Bank, payments: Payments) -> None:
    send(payments, metadata={"order": "o-1"}, description="naïve & £1=1")
    (request,) = bank.server.requests
    assert parse_qs(request["body"]) == {
        "amount": ["1530"], "confirm": ["true"], "currency": ["gbp"], "description": ["naïve & £1=1"],
        "metadata[echoproof_key]": [KEY], "metadata[order]": ["o-1"], "payment_method": ["pm_card_visa"],
    }  # fmt: skip
    assert "X-Stripe-Client-Telemetry" not in request["headers"]


# Secrets


def test_no_reason_holds_a_secret_or_a_customer(bank: Bank, caplog: pytest.LogCaptureFixture) -> None:
    payments = account(bank.url)
    texts: list[str] = [repr(payments), repr(PaymentSettings(payments_key=SecretStr(SECRET), payments_url=bank.url))]
    kinds = [
        "decline", "error_saved", "conflict", "unauthorised", "rate_limited", "drop_after_commit", "error_unsaved",
    ]  # fmt: skip
    for number, kind in enumerate(kinds):
        bank.wrong(kind)
        texts.append(repr(send(payments, key=f"key-{number}", customer=PAYER)))
        texts.append(repr(send(payments, key=f"key-{number}", customer=PAYER, amount=7)))
    echo = problem("402 Declined", type="card_error", code=f"declined for {PAYER}", message=f"{PAYER} with {SECRET}")
    for raw in (echo, echo.replace(b"402", b"500"), answer("500 Error", f"{PAYER} {SECRET}".encode())):
        with Scripted(lambda visit, raw=raw: visit.read().say(raw)) as server:  # type: ignore[misc]
            texts += [repr(send(account(server.url), customer=PAYER)), repr(lookup(account(server.url)))]
    for text in [*texts, caplog.text]:
        assert "hunter2" not in text
        assert "Lovelace" not in text


def test_a_missing_or_wrong_setting_is_told_without_its_value() -> None:
    with pytest.raises(ConfigError) as caught:
        PaymentSettings.from_environment({"PAYMENTS_URL": "ftp://hunter2", "PAYMENTS_TIMEOUT": "hunter2"})
    assert [item.partition(":")[0] for item in caught.value.problems] == [
        "PAYMENTS_KEY", "PAYMENTS_URL", "PAYMENTS_TIMEOUT",
    ]  # fmt: skip
    assert "hunter2" not in str(caught.value)


# Accounts


def test_another_address_is_all_that_the_local_provider_needs(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAYMENTS_KEY", SECRET)
    monkeypatch.setenv("PAYMENTS_URL", f"{bank.url}/")
    assert isinstance(send(Payments.from_environment()), Confirmed)
    assert bank.server.requests[0]["headers"]["Authorization"] == f"Bearer {SECRET}"


def test_a_real_account_needs_its_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def refuse(_method: str, url: str, *_: Any) -> None:
        asked.append(url)
        raise AssertionError

    monkeypatch.setattr("shared.providers.payments.exchange", refuse)
    monkeypatch.delenv("PAYMENTS_URL", raising=False)
    monkeypatch.setenv("PAYMENTS_KEY", SECRET)
    with pytest.raises(AssertionError):
        send(Payments.from_environment())
    assert asked == ["https://api.stripe.com/v1/payment_intents"]
