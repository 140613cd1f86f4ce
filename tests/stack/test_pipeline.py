"""The pipeline under failure: real processes, killed by real signals, recover to exactly one effect."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import UUID

import psutil
import pytest
import requests

from local.signing import Signer, claims_of
from local.stack import PUSH_ACCOUNT
from shared.publisher import Dispatch
from tests.stack.kit import TICK, Rig, folder_for_all, push

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

NUMBERS = 50  # simultaneous deliveries of one message
BATCH = 40  # operations while Pub/Sub is away
OUTAGE = 4.0  # seconds
NOBODY = UUID(int=7)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with folder_for_all() as folder:
        rig = Rig(folder)
        try:
            yield rig
            rig.check()
        finally:
            rig.close()


def test_a1_fifty_deliveries_at_the_same_moment_make_one_invoice(rig: Rig) -> None:
    dispatch = rig.accept("plain")
    barrier = threading.Barrier(NUMBERS)

    def deliver(_: int) -> dict[str, Any]:
        barrier.wait()
        return rig.deliver("crash_record", dispatch)

    with ThreadPoolExecutor(NUMBERS) as pool:
        answers = list(pool.map(deliver, range(NUMBERS)))
    outcomes = Counter(answer["outcome"] for answer in answers)
    assert outcomes["succeeded"] == 1
    assert outcomes["succeeded"] + outcomes["busy"] + outcomes["done"] == NUMBERS
    assert rig.rest(dispatch.operation_id) == "succeeded"
    assert rig.invoices(dispatch.operation_id) == 1
    step = rig.step(dispatch.operation_id)
    assert (step["attempt"], step["failures"], step["fence"]) == (1, 1, 1)
    assert {answer["result"]["number"] for answer in answers if answer["outcome"] == "done"} <= {
        step["result"]["number"]
    }


def test_a2_killed_before_the_commit_leaves_neither_invoice_nor_completion(rig: Rig) -> None:
    submitted = rig.submit("handled")
    rig.until(lambda: rig.step(submitted.operation_id)["state"] == "running", "the claim")
    assert rig.invoices(submitted.operation_id) == 0
    assert rig.step(submitted.operation_id)["result"] is None
    recovered(rig, submitted.operation_id)


def test_killed_after_the_claim_before_any_work(rig: Rig) -> None:
    submitted = rig.submit("claimed")
    recovered(rig, submitted.operation_id)


def recovered(rig: Rig, operation_id: str) -> None:
    """Without help there is one invoice in the end, after one attempt more."""
    assert rig.rest(operation_id) == "succeeded"
    assert rig.outcomes(operation_id) == ["abandoned", "succeeded"]
    assert rig.invoices(operation_id) == 1
    rig.check()


def test_a3_killed_after_the_commit_before_the_answer(rig: Rig) -> None:
    submitted = rig.submit("answered")
    assert rig.rest(submitted.operation_id) == "succeeded"
    first = (submitted.operation_id, "record", 1)
    rig.until(lambda: rig.messages()[first] >= 2, "the delivery again")  # Pub/Sub had no answer
    assert rig.outcomes(submitted.operation_id) == ["succeeded"]
    assert rig.invoices(submitted.operation_id) == 1
    again = rig.deliver("crash_record", Dispatch(UUID(submitted.operation_id), "invoice.generate", "record", 1))
    assert again == {"outcome": "done", "result": rig.step(submitted.operation_id)["result"]}


def test_a3_killed_after_the_commit_before_the_next_step_is_published(rig: Rig) -> None:
    submitted = rig.submit("committed")
    rig.until(lambda: rig.step(submitted.operation_id)["state"] == "succeeded", "the commit")
    assert rig.invoices(submitted.operation_id) == 1
    time.sleep(3 * TICK)
    assert rig.step(submitted.operation_id, "seal")["attempt"] == 0  # nobody has published it: the writer's minute
    rig.query(f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{submitted.operation_id}'")
    assert rig.rest(submitted.operation_id) == "succeeded"
    assert rig.outcomes(submitted.operation_id) == ["succeeded"]
    assert rig.outcomes(submitted.operation_id, "seal") == ["succeeded"]


def test_a6_the_same_operation_again_has_the_same_result(rig: Rig) -> None:
    submitted = rig.submit("plain")
    assert rig.rest(submitted.operation_id) == "succeeded"
    before = rig.client.status(submitted.operation_id)
    again = rig.client.submit(
        {"type": before["type"], "input": submitted_input(rig, submitted.operation_id)}, before["key"]
    )
    assert (again.operation_id, again.new) == (submitted.operation_id, False)
    for dispatch in (1, 1, 2):
        message = Dispatch(UUID(submitted.operation_id), "invoice.generate", "record", dispatch)
        assert rig.deliver("crash_record", message)["outcome"] == "done"
    assert rig.client.status(submitted.operation_id) == before
    assert rig.invoices(submitted.operation_id) == 1


def submitted_input(rig: Rig, operation_id: str) -> dict[str, Any]:
    found: dict[str, Any] = rig.query(f"SELECT input FROM operations WHERE id = '{operation_id}'")[0][0]
    return found


def test_a7_of_two_attempts_at_once_only_one_takes_effect(rig: Rig) -> None:
    submitted = rig.submit("stalled")
    rig.until(lambda: rig.step(submitted.operation_id)["state"] == "running", "the first attempt")
    expire = (
        "UPDATE steps SET lease_expires_at = now() - interval '1 second' "
        f"WHERE operation_id = '{submitted.operation_id}' AND state = 'running' AND attempt = 1"
    )
    rig.until(lambda: (rig.query(expire), rig.step(submitted.operation_id)["dispatch"] > 1)[1], "reconcile")
    assert rig.rest(submitted.operation_id) == "succeeded"
    result = rig.step(submitted.operation_id)["result"]
    rig.flags.joinpath(f"go-{rig.client.status(submitted.operation_id)['key']}").touch()  # and the first one goes on
    rig.until(lambda: "the lease was lost" in rig.log("crash_record"), "the first attempt's end")
    assert rig.step(submitted.operation_id)["result"] == result
    assert rig.invoices(submitted.operation_id) == 1
    assert rig.outcomes(submitted.operation_id) == ["abandoned", "succeeded"]


def test_a9_publishing_interrupted_in_the_middle_of_a_batch(rig: Rig) -> None:
    before = rig.messages()
    ids = [rig.submit("plain").operation_id for _ in range(BATCH // 2)]
    rig.stack.hold_down("cloud")
    began = time.monotonic()
    with ThreadPoolExecutor(4) as pool:  # accepted all the same
        ids += [one.operation_id for one in pool.map(lambda _: rig.submit_alone("plain"), range(BATCH // 2))]
    time.sleep(max(0.0, OUTAGE - (time.monotonic() - began)))
    rig.stack.bring_up("cloud")
    assert {rig.rest(one) for one in ids} == {"succeeded"}
    assert [rig.invoices(one) for one in ids] == [1] * BATCH
    assert rig.query("SELECT count(*) FROM outbox") == [[0]]
    assert {tuple(rig.outcomes(one)) for one in ids} == {("succeeded",)}
    sent = {which: count - before[which] for which, count in rig.messages().items() if which[0] in ids}
    assert set(sent) == {(one, step, 1) for one in ids for step in ("record", "seal")}
    assert max(sent.values()) <= 4  # duplicates are bounded
    rig.check()


def test_retries_exhausted_are_one_review_row_and_seen_over_http(rig: Rig) -> None:
    submitted = rig.submit("plain", "test.fails", {"n": 1})
    assert rig.rest(submitted.operation_id) == "needs_review"
    found = rig.client.status(submitted.operation_id)
    assert (found["state"], found["steps"][0]["state"], found["steps"][0]["failures"]) == (
        "needs_review",
        "exhausted",
        3,
    )
    listed = requests.get(f"{rig.client._base}?state=needs_review", timeout=10).json()
    assert submitted.operation_id in [one["id"] for one in listed["operations"]]
    rows = rig.query(
        "SELECT cause, state, occurrences, error_kind FROM dead_letters "
        f"WHERE operation_id = '{submitted.operation_id}'"
    )
    assert rows == [["exhausted", "open", 1, "RuntimeError"]]
    assert rig.outcomes(submitted.operation_id, "only") == ["retry", "retry", "exhausted"]
    assert "canary" not in json.dumps(found) + rig.log("fails")


def test_case_27_a_long_step_pushed_four_times_runs_once(rig: Rig) -> None:
    dispatch = rig.accept("plain", "test.slow", {"seconds": 8})  # its lease is 5 s; the heartbeat keeps it
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(rig.deliver, "slow", dispatch)
        rig.until(lambda: rig.step(dispatch.operation_id, "only")["state"] == "running", "the claim")
        for _ in range(3):
            assert rig.deliver("slow", dispatch)["outcome"] == "busy"
            time.sleep(2)
        assert first.result() == {"outcome": "succeeded", "result": {"attempt": 1}}
    assert rig.deliver("slow", dispatch) == {"outcome": "done", "result": {"attempt": 1}}
    assert rig.outcomes(dispatch.operation_id, "only") == ["succeeded"]
    assert rig.step(dispatch.operation_id, "only")["failures"] == 1
    key = rig.client.status(str(dispatch.operation_id))["key"]
    assert (rig.flags / f"runs-{key}").read_text() == "run\n"


def test_case_24_a_relay_killed_after_its_publish_publishes_again_and_the_step_runs_once(rig: Rig) -> None:
    rig.stack.hold_down("crash_record")  # so that the message is not claimed before the relay is back
    dispatch = rig.accept("plain")
    due = f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{dispatch.operation_id}'"
    flag = rig.flags / "kill-relay"
    flag.touch()
    rig.query(due)
    rig.until(lambda: not flag.exists(), "the relay's end")
    published = f"SELECT published FROM outbox WHERE operation_id = '{dispatch.operation_id}'"
    assert rig.query(published) == [[1]]
    rig.query("UPDATE progress SET claimed_at = now() - interval '3 minutes'")  # else it waits as one of a backlog
    rig.query(due)
    rig.until(lambda: rig.query(published) == [[2]], "the next relay")
    rig.stack.bring_up("crash_record")
    assert rig.rest(dispatch.operation_id) == "succeeded"
    which = (str(dispatch.operation_id), "record", 1)
    rig.until(lambda: rig.messages()[which] >= 2, "both messages")
    assert rig.outcomes(dispatch.operation_id) == ["succeeded"]
    assert rig.invoices(dispatch.operation_id) == 1


MALFORMED = {
    "an empty body": b"",
    "not JSON": b"\xff\xfe{",
    "an array": b"[]",
    "a string": b'"x"',
    "no message": b"{}",
    "message is a number": b'{"message": 7}',
    "no data": b'{"message": {"messageId": "1", "attributes": {"a": "b"}}, "subscription": "s"}',
    "bad base64": b'{"message": {"messageId": "2", "data": "%%%"}, "subscription": "s"}',
    "data is no UTF-8": b'{"message": {"messageId": "3", "data": "//79"}, "subscription": "s"}',
    "data is an array": b'{"message": {"messageId": "4", "data": "W10="}, "subscription": "s"}',
    "data lacks ids": b'{"message": {"messageId": "5", "data": "eyJ2IjoxfQ=="}, "subscription": "s"}',
    "data is a number": b'{"message": {"data": 7}}',
    "deep": b"[" * 5000,
}


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_case_11_a_malformed_push_is_recorded_once_and_acknowledged(rig: Rig, name: str) -> None:
    before = rig.query("SELECT count(*) FROM dead_letters WHERE cause = 'malformed'")[0][0]
    for _ in range(3):
        answer = rig.post("seal", MALFORMED[name])
        assert (answer.status_code, answer.json()["outcome"]) == (200, "malformed")
        assert "Traceback" not in answer.text
    rows = rig.query("SELECT occurrences, state FROM dead_letters WHERE cause = 'malformed' ORDER BY last_seen_at")
    assert (len(rows), rows[-1]) == (before + 1, [3, "open"])
    assert "Traceback" not in rig.log("seal")


def test_case_11_a_push_without_its_diagnostics_is_still_a_message(rig: Rig) -> None:
    dispatch = rig.accept("plain")
    body = json.loads(push(dispatch))
    del body["subscription"], body["message"]["messageId"]
    answer = rig.post("crash_record", json.dumps(body).encode())
    assert answer.json()["outcome"] == "succeeded"


def test_a_message_for_nobody_is_recorded_and_acknowledged(rig: Rig) -> None:
    message = Dispatch(NOBODY, "invoice.generate", "record", 1)
    assert rig.deliver("crash_record", message)["outcome"] == "unknown"
    assert rig.deliver("seal", message)["outcome"] == "malformed"  # not a step of this function
    assert rig.query("SELECT count(*) FROM dead_letters WHERE cause = 'unknown'") == [[1]]


def test_case_47_no_step_starts_without_the_right_token(rig: Rig) -> None:
    dispatch = rig.accept("plain")
    written = (
        "SELECT (SELECT count(*) FROM dead_letters), (SELECT sum(fence) FROM steps), (SELECT count(*) FROM invoices)"
    )
    before = rig.query(written)
    url, now = rig.url("crash_record"), int(time.time())
    good = claims_of(PUSH_ACCOUNT, url, now)
    wrong: dict[str, str | None] = {
        "absent": None,
        "not a token": "x.y.z",
        "another audience": rig.signer.id_token(PUSH_ACCOUNT, rig.url("seal")),
        "another account": rig.signer.id_token("stranger@echoproof-local.iam.gserviceaccount.com", url),
        "the scheduler": rig.signer.id_token("scheduler@echoproof-local.iam.gserviceaccount.com", url),
        "unverified": rig.signer.sign(good | {"email_verified": False}),
        "expired": rig.signer.sign(good | {"iat": now - 7200, "exp": now - 3600}),
        "from the future": rig.signer.sign(good | {"iat": now + 600, "exp": now + 4200}),
        "another issuer": rig.signer.sign(good | {"iss": "https://example.com"}),
        "another key": Signer().id_token(PUSH_ACCOUNT, url),
    }
    for name, token in wrong.items():
        for body in (push(dispatch), b"", b"[]"):
            answer = rig.post("crash_record", body, token)
            assert answer.status_code in {401, 403}, name
            assert answer.headers["Content-Type"] == "application/problem+json"
    for function in ("relay", "reconcile", "dead_letter"):
        assert rig.post(function, push(dispatch), None).status_code == 401
    assert rig.query(written) == before
    assert rig.deliver("crash_record", dispatch)["outcome"] == "succeeded"


def test_a_function_whose_processes_are_killed_is_started_again(rig: Rig) -> None:
    part = rig.stack.parts["seal"]
    old, starts = part.pid, part.starts
    assert old is not None
    os.killpg(old, signal.SIGKILL)
    submitted = rig.submit("plain")
    assert rig.rest(submitted.operation_id) == "succeeded"
    assert part.starts == starts + 1
    assert part.pid not in {None, old}
    assert not psutil.pid_exists(old)
    assert rig.stack.failure is None
