"""The database's connections die at the worst moment; intake and its callers still find one operation."""

from __future__ import annotations

import itertools
import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from local.postgres import Postgres, temporary
from local.signing import Signer
from shared.database import RETRIES, Database, connector
from shared.migrate import migrate
from tests.database.kit import Kit, pipeline_in
from tests.database.rival import Rival, wait_until_blocked
from tests.http.proxy import Lose
from tests.http.service import OPERATIONS, Answer, Service, service_for

BODY = {"type": "test.single", "input": {"n": 1}}
INTAKES = "datname = current_database() AND application_name = 'echoproof' AND pid <> pg_backend_pid()"
_keys = itertools.count()


@pytest.fixture
def key() -> str:
    return f"connection-{next(_keys)}-key"


def operations_of(kit: Kit, key: str) -> int:
    counts = {kit.value(f"SELECT count(*) FROM {table} WHERE key = '{key}'") for table in ("identities", "operations")}
    (count,) = counts
    return int(count)


def fill_the_pool(service: Service) -> None:
    """Use every pooled connection of the instance."""
    with ThreadPoolExecutor(16) as pool:
        assert {a.status for a in pool.map(lambda _: service.get(OPERATIONS), range(64))} == {200}


@pytest.mark.parametrize("times", [1, 2, RETRIES - 1])
def test_case_62_the_answer_to_the_commit_is_lost(service: Service, kit: Kit, key: str, times: int) -> None:
    service.proxy.lose(key.encode(), Lose.ANSWER, times)
    answer = service.post(BODY, key)
    assert service.proxy.lost == times
    assert answer.status in (200, 202)
    assert operations_of(kit, key) == 1
    again = service.post(BODY, key)
    assert (again.status, again.json["id"]) == (200, answer.json["id"])
    kit.check_invariant()


def test_case_62_the_answers_to_every_repetition_are_lost_and_the_caller_finds_it(
    service: Service, kit: Kit, key: str
) -> None:
    service.proxy.lose(key.encode(), Lose.ANSWER, RETRIES)
    assert service.post(BODY, key).problem == "unavailable"
    assert service.proxy.lost == RETRIES
    assert operations_of(kit, key) == 1
    assert service.post(BODY, key).status == 200
    assert operations_of(kit, key) == 1


def test_case_62_the_statement_never_arrives(service: Service, kit: Kit, key: str) -> None:
    service.proxy.lose(key.encode(), Lose.REQUEST)
    assert service.post(BODY, key).status == 202
    assert service.proxy.lost == 1
    assert operations_of(kit, key) == 1


def test_case_62_another_request_under_a_lost_answer_is_still_refused(service: Service, kit: Kit, key: str) -> None:
    assert service.post(BODY, key).status == 202
    service.proxy.lose(key.encode(), Lose.ANSWER)
    assert service.post({**BODY, "input": {"n": 2}}, key).problem == "key-reused"
    assert service.proxy.lost == 1


def test_case_62_eight_callers_lose_their_answers_at_once(service: Service, kit: Kit, key: str) -> None:
    service.proxy.lose(key.encode(), Lose.ANSWER, RETRIES - 1)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: service.post(BODY, key), range(8)))
    assert {answer.status for answer in answers} <= {200, 202}
    assert len({answer.json["id"] for answer in answers}) == 1
    assert operations_of(kit, key) == 1


def test_a_cancel_whose_answer_is_lost_is_repeated(service: Service, kit: Kit, key: str) -> None:
    answer = service.post(BODY, key)
    service.proxy.lose(b"COMMIT", Lose.ANSWER)
    cancelled = service.cancel(answer.headers["Location"])
    assert service.proxy.lost == 1
    assert (cancelled.status, cancelled.json["state"]) == (200, "cancelled")
    kit.check_invariant()


@pytest.mark.parametrize("committed", [True, False])
def test_case_8_the_waiting_statements_backend_is_ended_and_its_repetition_waits_again(
    service: Service, kit: Kit, key: str, committed: bool
) -> None:
    rival = Rival(kit, key, {"n": 1})
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(service.post, BODY, key)
        (ended,) = wait_until_blocked(kit)
        kit.query(f"SELECT pg_terminate_backend({ended}, 5000)")
        (waiting,) = wait_until_blocked(kit)
        assert waiting != ended
        if committed:
            rival.commit()
        else:
            rival.rollback()
    same = answer.result().json["id"] == str(rival.operation_id)
    assert (answer.result().status, same) == ((200, True) if committed else (202, False))
    assert operations_of(kit, key) == 1


def test_case_32_every_idle_backend_is_ended_and_the_next_requests_work(service: Service, kit: Kit, key: str) -> None:
    location = service.post(BODY, key).headers["Location"]
    sends: list[Callable[[], Answer]] = [
        lambda: service.get(location),
        lambda: service.get(OPERATIONS),
        lambda: service.post(BODY, f"{key}-2"),
        lambda: service.cancel(location),
    ]
    for send in sends:
        fill_the_pool(service)
        assert kit.query(f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE {INTAKES}")
        assert send().status in (200, 202)


def test_case_32_while_the_database_is_away_callers_are_told_to_come_back(service: Service, kit: Kit, key: str) -> None:
    service.proxy.refuse(refusing=True)
    try:
        answers = [service.post(BODY, key), service.get(OPERATIONS)]
    finally:
        service.proxy.refuse(refusing=False)
    assert {(a.problem, a.headers["Retry-After"]) for a in answers} == {("unavailable", "5")}
    assert service.post(BODY, key).status == 202
    assert operations_of(kit, key) == 1


@pytest.fixture(scope="module")
def own_server() -> Iterator[Postgres]:
    """A PostgreSQL that may be restarted."""
    server, folder = temporary(fsync="off")
    with server:
        migrate(connector(server.url))
        yield server
    shutil.rmtree(folder, ignore_errors=True)


def test_case_32_postgresql_is_restarted_and_the_next_request_works(
    own_server: Postgres, signer: Signer, certs_url: str, pubsub: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("restarted")
    pipeline = pipeline_in(folder)
    service = service_for(own_server.url, signer, certs_url, pubsub, folder / "pipeline.yaml", folder)
    try:
        for how in (signal.SIGINT, signal.SIGQUIT):  # a fast shutdown, and as after a crash
            key = f"restart-{how.name}"
            first = service.post(BODY, key)
            fill_the_pool(service)
            own_server.stop(how)
            assert service.post(BODY, f"{key}-2").problem == "unavailable"
            own_server.start()
            again = service.post(BODY, key)
            assert (again.status, again.json["id"]) == (200, first.json["id"])
            assert service.post(BODY, f"{key}-2").status == 202
            fill_the_pool(service)
            own_server.stop(how)
            own_server.start()
            assert service.cancel(first.headers["Location"]).json["state"] == "cancelled"
        database = Database(connector(own_server.url), size=1)
        kit = Kit(database, pipeline, own_server.url)
        assert kit.value("SELECT count(*) FROM operations") == kit.value("SELECT count(*) FROM identities") == 4
        kit.close()
        database.close()
    finally:
        service.part.terminate()
        service.part.wait_stopped()
        service.proxy.close()
