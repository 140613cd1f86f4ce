"""The local payment provider keeps Stripe's contract: "Idempotent requests", "Errors", "Search" of its manual."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import stripe

from local.payments import HORIZON, PaymentServer
from local.serving.host import PortInUseError
from tests.local.process import ROOT, ServerProcess
from tests.providers.bank import AUTHORISED, PAYMENT, Bank

REPLAYED = "Idempotent-Replayed"


def error(answer: requests.Response) -> dict[str, Any]:
    told: dict[str, Any] = answer.json()["error"]
    assert told["message"]
    return told


# Saved results


def test_a_payment_is_made_once_and_its_answer_given_again_byte_for_byte(bank: Bank) -> None:
    first, again = bank.pay("key-1"), bank.pay("key-1")
    assert (first.status_code, first.json()["status"], first.json()["amount"]) == (200, "succeeded", 1530)
    assert (again.status_code, again.content) == (first.status_code, first.content)
    assert (first.headers.get(REPLAYED), again.headers.get(REPLAYED)) == (None, "true")
    assert again.headers["Content-Type"] == first.headers["Content-Type"]
    assert len(bank.ledger()) == 1


@pytest.mark.parametrize(
    ("kind", "status", "type_", "made"),
    [
        ("error_saved", 500, "api_error", 0),
        ("error_after_commit", 500, "api_error", 1),
        ("decline", 402, "card_error", 0),
    ],
)
def test_a_failure_is_saved_and_given_again_too(bank: Bank, kind: str, status: int, type_: str, made: int) -> None:
    bank.wrong(kind)
    first, *others = [bank.pay("key-1") for _ in range(3)]
    assert (first.status_code, error(first)["type"], first.headers.get(REPLAYED)) == (status, type_, None)
    for again in others:
        assert (again.status_code, again.content, again.headers[REPLAYED]) == (status, first.content, "true")
    assert len(bank.ledger()) == made


def test_a_declined_card_says_so(bank: Bank) -> None:
    bank.wrong("decline")
    assert error(bank.pay("key-1"))["code"] == "card_declined"
    assert bank.pay("key-2").ok


def test_what_did_not_begin_to_execute_is_not_saved(bank: Bank) -> None:
    url, key = f"{bank.url}/v1/payment_intents", {"Idempotency-Key": "key-1"}
    unauthorised = requests.post(url, PAYMENT, headers=key, timeout=30)
    assert (unauthorised.status_code, error(unauthorised)["type"]) == (401, "invalid_request_error")
    for kind, status in (("unauthorised", 401), ("rate_limited", 429), ("conflict", 409), ("error_unsaved", 500)):
        bank.wrong(kind)
        assert bank.pay("key-1").status_code == status
    paid = bank.pay("key-1")
    assert (paid.status_code, paid.headers.get(REPLAYED)) == (200, None)
    assert len(bank.ledger()) == 1


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"amount": None}, "parameter_missing", "amount"),
        ({"currency": None}, "parameter_missing", "currency"),
        ({"amount": "15.30"}, "parameter_invalid_integer", "amount"),
        ({"amount": "-1"}, "parameter_invalid_integer", "amount"),
        ({"amount": "²"}, "parameter_invalid_integer", "amount"),
    ],
)
def test_a_request_that_is_not_valid_is_not_saved(
    bank: Bank, change: dict[str, str | None], code: str, param: str
) -> None:
    given = {name: value for name, value in {**PAYMENT, **change}.items() if value is not None}
    refused = bank.pay("key-1", given)
    told = error(refused)
    assert (refused.status_code, told["type"], told["code"], told["param"]) == (
        400, "invalid_request_error", code, param,
    )  # fmt: skip
    corrected = bank.pay("key-1")
    assert (corrected.status_code, corrected.headers.get(REPLAYED)) == (200, None)


def test_a_key_may_have_255_characters(bank: Bank) -> None:
    assert bank.pay("k" * 255).ok
    refused = bank.pay("k" * 256)
    assert (refused.status_code, error(refused)["type"]) == (400, "invalid_request_error")
    assert len(bank.ledger()) == 1


def test_without_a_key_each_request_pays(bank: Bank) -> None:
    bank.wrong("hang_before_commit", seconds=0.3)
    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(lambda _: bank.pay(""), range(3)))
    assert [answer.status_code for answer in answers] == [200, 200, 200]
    assert len({payment["id"] for payment in bank.ledger()}) == 3


# The parameters of a key


@pytest.mark.parametrize(
    "other",
    [{**PAYMENT, "amount": "1531"}, {**PAYMENT, "description": "x"}, {**PAYMENT, "amount": "not a number"}, {}],
)
def test_other_parameters_under_a_key_are_refused_and_change_nothing(bank: Bank, other: dict[str, str]) -> None:
    first = bank.pay("key-1")
    refused = bank.pay("key-1", other)
    told = error(refused)
    assert (refused.status_code, told["type"], refused.headers.get(REPLAYED)) == (400, "idempotency_error", None)
    assert "code" not in told
    assert bank.pay("key-1").content == first.content
    assert len(bank.ledger()) == 1


def test_the_same_parameters_in_another_order_or_spelling_are_the_same(bank: Bank) -> None:
    bank.pay("key-1", "amount=1530&currency=gbp&metadata[a]=x+y&description=")
    again = bank.pay("key-1", "description=&metadata%5Ba%5D=x%20y&currency=gbp&amount=1530")
    assert (again.status_code, again.headers[REPLAYED]) == (200, "true")
    assert bank.pay("key-1", "currency=gbp&amount=1530&metadata[a]=x+y").status_code == 400  # an empty one is one


# At the same time


def test_a_key_in_progress_is_a_conflict_and_pays_once(bank: Bank) -> None:
    bank.wrong("hang_before_commit", seconds=0.6)
    with ThreadPoolExecutor() as pool:
        slow = pool.submit(bank.pay, "key-1")
        while not bank.server.requests:
            time.sleep(0.01)
        meanwhile, other = bank.pay("key-1"), bank.pay("key-2")
        told = error(meanwhile)
        assert (meanwhile.status_code, told["type"], told["code"]) == (
            409, "idempotency_error", "idempotency_key_in_use",
        )  # fmt: skip
        assert other.ok  # another key does not wait
        assert slow.result().ok
    again = bank.pay("key-1")
    assert (again.content, again.headers[REPLAYED]) == (slow.result().content, "true")
    assert [payment["key"] for payment in bank.ledger()].count("key-1") == 1


def test_many_at_once_pay_once(bank: Bank) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: bank.pay("key-1"), range(24)))
    assert {answer.status_code for answer in answers} <= {200, 409}
    assert len({answer.content for answer in answers if answer.ok}) == 1
    assert len(bank.ledger()) == 1


def test_a_client_that_gives_up_does_not_stop_the_payment(bank: Bank) -> None:
    bank.wrong("hang_before_commit", seconds=0.4)
    with pytest.raises(requests.ReadTimeout):
        bank.pay("key-1", timeout=0.1)
    assert bank.ledger() == []
    while not bank.ledger():
        time.sleep(0.05)
    assert bank.pay("key-1").headers[REPLAYED] == "true"


# Pruning


def test_a_key_is_pruned_after_its_horizon_and_then_pays_again(bank: Bank) -> None:
    first = bank.pay("key-1")
    bank.advance(HORIZON - 60)
    assert bank.pay("key-1").headers[REPLAYED] == "true"  # and that does not renew it
    bank.advance(120)
    again = bank.pay("key-1")
    assert (again.status_code, again.headers.get(REPLAYED)) == (200, None)
    assert again.json()["id"] != first.json()["id"]
    assert [payment["key"] for payment in bank.ledger()] == ["key-1", "key-1"]  # the danger that a horizon is about


def test_a_pruned_key_may_have_other_parameters(bank: Bank) -> None:
    bank.pay("key-1")
    bank.advance(HORIZON + 1)
    assert bank.pay("key-1", {**PAYMENT, "amount": "1"}).ok


# Misbehaviour


@pytest.mark.parametrize(("kind", "made"), [("drop_before_commit", 0), ("drop_after_commit", 1)])
def test_a_dropped_connection_has_paid_or_not(bank: Bank, kind: str, made: int) -> None:
    bank.wrong(kind)
    with pytest.raises(requests.ConnectionError):
        bank.pay("key-1")
    assert len(bank.ledger()) == made
    assert bank.pay("key-1").headers.get(REPLAYED) == ("true" if made else None)
    assert len(bank.ledger()) == 1


@pytest.mark.parametrize(("kind", "made"), [("hang_before_commit", 0), ("hang_after_commit", 1)])
def test_a_hang_has_paid_or_not(bank: Bank, kind: str, made: int) -> None:
    bank.wrong(kind)  # for longer than any client waits
    with pytest.raises(requests.ReadTimeout):
        bank.pay("key-1", timeout=0.3)
    assert len(bank.ledger()) == made
    assert bank.pay("key-1").status_code == (200 if made else 409)


@pytest.mark.parametrize("after", ["7", "a date"])
def test_too_many_requests_say_when_in_seconds_or_as_a_date(bank: Bank, after: str) -> None:
    if after == "a date":  # made here, not where it is collected: every process of the run must collect the same
        after = format_datetime(datetime.now(UTC) + timedelta(minutes=5), usegmt=True)
    bank.wrong("rate_limited", retry_after=after)
    refused = bank.pay("key-1")
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, after)
    assert error(refused)["code"] == "rate_limit"
    assert bank.ledger() == []


def test_a_slow_drip_is_the_whole_answer_in_the_end(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("local.faults.DRIP", 0.001)
    first = bank.pay("key-1")
    bank.wrong("drip")
    dripped = bank.pay("key-1")
    assert (dripped.content, dripped.headers[REPLAYED]) == (first.content, "true")


def test_faults_are_ordered_by_kind_and_unknown_ones_refused(bank: Bank) -> None:
    for order in ({"next": [{"kind": "explode"}]}, {"rates": {"explode": 1}}, {"next": [{"who": 1}]}, {"next": 1}):
        assert requests.post(f"{bank.url}/_control/faults", json=order, timeout=30).status_code == 400
    assert bank.pay("key-1").ok
    bank.wrong("search_down")
    bank.wrong("none")
    bank.wrong("decline")
    assert bank.pay("key-2").ok  # "none"; the search's own fault waits for a search
    assert bank.pay("key-3").status_code == 402
    assert bank.search("metadata['a']:'b'").status_code == 503
    assert bank.search("metadata['a']:'b'").ok


def test_faults_by_chance_come_in_their_share_and_every_payment_is_made_once(bank: Bank) -> None:
    rates = {"drop_after_commit": 0.25, "error_unsaved": 0.25}
    assert requests.post(f"{bank.url}/_control/faults", json={"rates": rates}, timeout=30).ok
    tries = 0
    for number in range(40):
        while True:
            tries += 1
            try:
                if bank.pay(f"key-{number}").ok:
                    break
            except requests.ConnectionError:
                continue
    assert tries > 50
    assert sorted(payment["key"] for payment in bank.ledger()) == sorted(f"key-{number}" for number in range(40))


# Search


def test_a_payment_is_found_by_its_metadata_once_it_is_visible() -> None:
    server = PaymentServer(visibility=60)
    bank = Bank(server, f"http://127.0.0.1:{server.start()}")
    paid = bank.pay("key-1", {**PAYMENT, "metadata[order]": "o-1"}).json()
    queries = ["metadata['order']:'o-1'", 'metadata["order"]:"o-1"']
    assert [bank.search(query).json()["data"] for query in queries] == [[], []]
    bank.advance(61)
    for query in queries:
        found = bank.search(query).json()
        assert (found["object"], found["has_more"], found["url"]) == (
            "search_result", False, "/v1/payment_intents/search",
        )  # fmt: skip
        (payment,) = found["data"]
        assert {name: payment[name] for name in paid} == paid
    assert bank.search("metadata['order']:'o-2'").json()["data"] == []
    server.stop()


def test_a_search_needs_a_login_and_a_query(bank: Bank) -> None:
    assert bank.search("amount>1").status_code == 400
    assert requests.get(f"{bank.url}/v1/payment_intents/search", timeout=30).status_code == 401


def test_a_declined_payment_is_not_found(bank: Bank) -> None:
    bank.wrong("decline")
    bank.pay("key-1", {**PAYMENT, "metadata[order]": "o-1"})
    assert bank.search("metadata['order']:'o-1'").json()["data"] == []


# The official SDK, as it comes

PARAMETERS: Any = {"amount": 1530, "currency": "gbp", "confirm": True, "metadata": {"order": "o-1"}}
OTHER_AMOUNT: Any = {**PARAMETERS, "amount": 1}
WITHOUT_AMOUNT: Any = {"currency": "gbp"}


def test_the_sdk_pays_once_under_a_key_and_finds_it(bank: Bank) -> None:
    intents = bank.client().v1.payment_intents
    first = intents.create(PARAMETERS, {"idempotency_key": "key-1"})
    again = intents.create(PARAMETERS, {"idempotency_key": "key-1"})
    assert (first.id, first.status, first.metadata["order"]) == (again.id, "succeeded", "o-1")
    assert [found.id for found in intents.search({"query": "metadata['order']:'o-1'"}).data] == [first.id]
    assert len(bank.ledger()) == 1


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("decline", stripe.CardError),
        ("unauthorised", stripe.AuthenticationError),
        ("rate_limited", stripe.RateLimitError),
        ("error_saved", stripe.APIError),
        ("conflict", stripe.APIError),
        ("drop_after_commit", stripe.APIConnectionError),
    ],
)
def test_the_sdk_takes_each_answer_for_what_it_is(bank: Bank, kind: str, raised: type[Exception]) -> None:
    bank.wrong(kind)
    with pytest.raises(raised):
        bank.client().v1.payment_intents.create(PARAMETERS, {"idempotency_key": "key-1"})


def test_the_sdk_tells_other_parameters_and_missing_ones(bank: Bank) -> None:
    intents = bank.client().v1.payment_intents
    with pytest.raises(stripe.InvalidRequestError) as missing:
        intents.create(WITHOUT_AMOUNT, {"idempotency_key": "key-1"})
    assert (missing.value.code, missing.value.param) == ("parameter_missing", "amount")
    intents.create(PARAMETERS, {"idempotency_key": "key-1"})
    with pytest.raises(stripe.IdempotencyError):
        intents.create(OTHER_AMOUNT, {"idempotency_key": "key-1"})


# As a process


def test_what_was_paid_and_saved_survives_a_restart(tmp_path: Path) -> None:
    process = ServerProcess("local.payments", "--data", str(tmp_path))
    bank = Bank(PaymentServer(), process.addresses["payments"])
    first = bank.pay("key-1")
    bank.wrong("decline")
    bank.pay("key-2")
    process.kill()
    process.restart()
    bank.url = process.addresses["payments"]
    assert [payment["id"] for payment in bank.ledger()] == [first.json()["id"]]
    again = bank.pay("key-1")
    assert (again.content, again.headers[REPLAYED]) == (first.content, "true")
    assert bank.pay("key-2").status_code == 402
    assert bank.pay("key-1", {**PAYMENT, "amount": "1"}).status_code == 400
    assert process.end(signal.SIGTERM) == 0


def test_a_kill_at_any_moment_leaves_no_payment_without_its_key(tmp_path: Path) -> None:
    process = ServerProcess("local.payments", "--data", str(tmp_path))
    bank = Bank(PaymentServer(), process.addresses["payments"])
    stop = threading.Event()

    def pay(first: int) -> None:
        number = first
        while not stop.is_set():
            try:
                bank.pay(f"key-{number}")
            except requests.ConnectionError:
                return
            number += 4

    threads = [threading.Thread(target=pay, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    while len(bank.ledger()) < 100:
        time.sleep(0.01)
    process.kill()
    for thread in threads:
        thread.join()
    process.restart()
    bank.url = process.addresses["payments"]
    for payment in bank.ledger():
        assert bank.pay(payment["key"]).headers.get(REPLAYED) == "true"
    assert process.end(signal.SIGINT) == 0


def test_a_port_in_use_is_told(bank: Bank) -> None:
    with pytest.raises(PortInUseError):
        PaymentServer().start(port=int(bank.url.rpartition(":")[2]))


def test_a_process_takes_rates_and_refuses_unknown_ones() -> None:
    process = ServerProcess("local.payments", "--rates", '{"decline": 1.0}')
    assert set(process.addresses) == {"payments"}
    url = f"{process.addresses['payments']}/v1/payment_intents"
    assert requests.post(url, PAYMENT, headers=AUTHORISED, timeout=30).status_code == 402
    assert process.end(signal.SIGTERM) == 0
    command = [sys.executable, "-m", "local.payments", "--rates", '{"explode": 1.0}']
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "argument --rates: unknown faults: explode" in refused.stderr) == (2, True)
