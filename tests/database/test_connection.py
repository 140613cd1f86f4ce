"""Connections that fail in every place: nothing is believed that was not committed, and the next use works."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from urllib.parse import urlsplit

import pytest

from shared import operations
from shared.database import RETRIES, Connection, Database, Transaction, connector
from shared.database_errors import ConnectionLostError, ConstraintError, QueryError, StatementTimeoutError
from shared.errors import EchoproofError, RetryableError, UnavailableError
from shared.identity import Request
from shared.problems import problem_of
from tests.database.kit import Kit
from tests.database.rival import Rival, wait_until_blocked
from tests.http.proxy import Lose, Proxy

KEY = "connection-key"
POOL = 6
REQUEST = Request("test.single", {"n": 1})


@pytest.fixture
def proxy(database_url: str) -> Iterator[Proxy]:
    proxy = Proxy(urlsplit(database_url).port or 5432)
    yield proxy
    proxy.close()


@pytest.fixture
def through(proxy: Proxy, database_url: str) -> Iterator[Database]:
    """A pool whose connections go through the proxy."""
    url = urlsplit(database_url)._replace(netloc=f"postgres@127.0.0.1:{proxy.port}").geturl()
    database = Database(connector(url, application="through"), size=POOL)
    yield database
    database.close()


def accept(kit: Kit, database: Database) -> operations.Accepted:
    return operations.accept(database, kit.pipeline, "shop", KEY, REQUEST)


def insert(kit: Kit, transaction: Transaction, key: str = KEY) -> None:
    transaction.run("accept_operation", **operations._accept_parameters(kit.pipeline, "shop", key, REQUEST, None))


def fail(transaction: Transaction) -> None:
    """Fail a statement of the transaction: PostgreSQL takes no NUL in a text."""
    transaction.run("find_identity", tenant="shop", type="test.single", key="nul \0")


def fill(database: Database) -> None:
    """Open and use every connection of the pool at once."""
    barrier = Barrier(POOL)

    def use(_: int) -> None:
        with database.transaction():
            barrier.wait(30)

    with ThreadPoolExecutor(POOL) as pool:
        list(pool.map(use, range(POOL)))


def end_backends(kit: Kit) -> int:
    ended = kit.query("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'through'")
    return len(ended)


def operations_left(kit: Kit) -> int:
    return int(kit.value("SELECT count(*) FROM operations"))


def test_case_31_a_failed_statement_is_swallowed_and_the_commit_is_not_believed(kit: Kit) -> None:
    def work(transaction: Transaction) -> str:
        insert(kit, transaction)
        with contextlib.suppress(EchoproofError):
            fail(transaction)
        return "done"

    with pytest.raises(QueryError, match="25P02"):
        kit.database.in_transaction(work)
    with pytest.raises(QueryError, match="25P02"), kit.database.transaction() as transaction:
        work(transaction)
    assert operations_left(kit) == 0
    assert accept(kit, kit.database).new


def test_a_failed_statement_rolls_everything_back_and_the_connection_lives_on(kit: Kit) -> None:
    def work(transaction: Transaction) -> None:
        insert(kit, transaction)
        fail(transaction)

    database = Database(connector(kit.url), size=1)
    with pytest.raises(QueryError, match="22021"):
        database.in_transaction(work)
    assert operations_left(kit) == 0
    assert accept(kit, database).new
    database.close()


def test_case_32_every_idle_backend_is_ended_and_the_next_use_works(kit: Kit, through: Database) -> None:
    fill(through)
    assert end_backends(kit) == POOL > RETRIES
    assert accept(kit, through).new
    fill(through)
    assert end_backends(kit) == POOL
    through.in_transaction(lambda transaction: insert(kit, transaction, "another"), repeat_if_lost=True)
    assert operations_left(kit) == 2


def test_case_32_a_backend_ended_within_a_transaction_loses_all_of_it(kit: Kit, through: Database) -> None:
    def work(transaction: Transaction) -> None:
        insert(kit, transaction)
        end_backends(kit)
        insert(kit, transaction, "another")

    with pytest.raises(ConnectionLostError):
        through.in_transaction(work)
    assert operations_left(kit) == 0
    assert accept(kit, through).new


def test_case_32_work_that_may_be_repeated_is_repeated_as_a_whole(kit: Kit, through: Database) -> None:
    runs = []

    def work(transaction: Transaction) -> None:
        runs.append(1)
        insert(kit, transaction)
        if len(runs) < 3:
            end_backends(kit)
        insert(kit, transaction, "another")

    through.in_transaction(work, repeat_if_lost=True)
    assert (len(runs), operations_left(kit)) == (3, 2)


@pytest.mark.parametrize("lose", Lose)
def test_case_62_a_lost_answer_is_not_repeated_where_that_is_not_safe(
    kit: Kit, through: Database, proxy: Proxy, lose: Lose
) -> None:
    proxy.lose(b"COMMIT", lose)
    with pytest.raises(ConnectionLostError):
        through.in_transaction(lambda transaction: insert(kit, transaction))
    committed = lose is Lose.ANSWER
    assert (proxy.lost, operations_left(kit)) == (1, int(committed))
    assert accept(kit, through).new is not committed


@pytest.mark.parametrize("times", [1, RETRIES - 1])
def test_case_62_the_repetition_of_a_lost_acceptance_finds_its_own_row(
    kit: Kit, through: Database, proxy: Proxy, times: int
) -> None:
    proxy.lose(KEY.encode(), Lose.ANSWER, times)
    accepted = accept(kit, through)
    assert (proxy.lost, operations_left(kit)) == (times, 1)
    assert accepted.operation_id == accept(kit, through).operation_id
    kit.check_invariant()


def test_case_62_the_repetition_waits_for_a_transaction_in_doubt(kit: Kit, through: Database, proxy: Proxy) -> None:
    rival = Rival(kit, KEY, {"n": 1})
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(accept, kit, through)
        wait_until_blocked(kit)
        proxy.drop()
        wait_until_blocked(kit, 2)  # the first one's backend has not noticed that its client is gone
        rival.commit()
    assert accepted.result() == operations.Accepted(rival.operation_id, new=False, due=[])


def test_case_32_a_database_that_is_away_is_unavailable(kit: Kit, through: Database, proxy: Proxy) -> None:
    fill(through)
    proxy.refuse(refusing=True)
    with pytest.raises(UnavailableError):
        accept(kit, through)
    proxy.refuse(refusing=False)
    assert accept(kit, through).new


def test_a_statement_that_takes_too_long_may_be_tried_again(kit: Kit) -> None:
    connection = Connection(connector(kit.url)())
    connection.execute("SET lock_timeout = 50")
    rival = Rival(kit, KEY, {"n": 1})
    with pytest.raises(StatementTimeoutError) as caught:
        insert(kit, Transaction(connection))
    assert isinstance(caught.value, RetryableError)
    assert problem_of(caught.value).status == 503
    rival.rollback()
    insert(kit, Transaction(connection))
    connection.close()
    assert operations_left(kit) == 1


def test_case_49_a_constraint_is_told_by_name_and_code_alone(kit: Kit) -> None:
    kit.query("ALTER TABLE operations ADD CONSTRAINT forced CHECK (input ->> 'n' <> '1')")
    with pytest.raises(ConstraintError) as caught:
        accept(kit, kit.database)
    assert (caught.value.constraint, caught.value.sqlstate) == ("forced", "23514")
    assert str(caught.value) == "constraint forced was violated (23514)"
    assert caught.value.__cause__ is None
