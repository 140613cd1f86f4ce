"""Identity at the database: accepted once, compared for ever, and independent of every other identity."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from shared import operations, steps
from shared.duties import expired_leases
from shared.errors import UnavailableError
from shared.identity import Options, Request
from shared.operations import Accepted, KeyReusedError
from shared.outbox import Outbox
from shared.publisher import Dispatch, Publisher, PublishError
from tests.database.kit import Kit, drained
from tests.database.rival import Rival, wait_until_blocked

KEY = "order-1"


def finish(kit: Kit, held: steps.Claim, result: Any) -> None:
    with kit.database.transaction() as transaction:
        steps.succeed(transaction, held, result)


def unreachable() -> Any:
    raise PublishError("Pub/Sub is away")


def test_case_1_nobody_is_told_of_an_operation_that_is_rolled_back(kit: Kit) -> None:
    rival = Rival(kit, KEY, {"n": 1})
    with ThreadPoolExecutor(3) as pool:
        accepted = [pool.submit(kit.accept, key=KEY) for _ in range(3)]
        wait_until_blocked(kit, 3)
        rival.rollback()
    results = [each.result() for each in accepted]
    assert sorted(result.new for result in results) == [False, False, True]
    assert {result.operation_id for result in results} == {kit.value("SELECT id FROM operations")}
    kit.check_invariant()


def test_case_8_the_loser_of_two_inserts_gets_the_winners_operation(kit: Kit) -> None:
    rival = Rival(kit, KEY, {"n": 1})
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(kit.accept, key=KEY)
        wait_until_blocked(kit)
        rival.commit()
    assert accepted.result() == Accepted(rival.operation_id, new=False, due=[])
    kit.check_invariant()


def test_case_2_fifty_at_once_are_one_operation_and_one_run_of_a_slow_step(kit: Kit) -> None:
    def accept_and_run(_: int) -> Accepted:
        accepted = kit.accept(key=KEY)
        for dispatch in [Dispatch(accepted.operation_id, "test.single", "only", 1)] * 2:
            held = kit.claim(dispatch)
            if isinstance(held, steps.Claim):
                time.sleep(0.2)
                finish(kit, held, {"runs": 1})
        return accepted

    with ThreadPoolExecutor(20) as pool:
        results = list(pool.map(accept_and_run, range(50)))
    assert sum(result.new for result in results) == 1
    assert len({result.operation_id for result in results}) == 1
    assert kit.value("SELECT count(*) FROM operations WHERE state = 'succeeded'") == 1
    assert kit.value("SELECT count(*) FROM attempts") == 1


@pytest.mark.parametrize("given", [{"n": "1"}, {"n": [1]}, {"n": None}, {"n": 2}, {"m": 1}, {}])
def test_case_3_a4_a_changed_request_is_refused_and_the_original_recovers_after_a_kill(
    kit: Kit, given: dict[str, Any]
) -> None:
    operation_id = kit.accept(key=KEY).operation_id
    before = kit.query("SELECT i::text, o::text, s::text FROM identities i, operations o, steps s")
    with pytest.raises(KeyReusedError):
        kit.accept(given=given, key=KEY)
    assert kit.query("SELECT i::text, o::text, s::text FROM identities i, operations o, steps s") == before
    kit.claimed(kit.dispatches(operation_id)[0])  # and its holder is killed
    kit.expire_leases()
    outbox = Outbox(kit.database, kit.pipeline, Publisher("echoproof-test", unreachable))
    drained(expired_leases.batches, outbox, kit.pipeline)
    kit.query("UPDATE steps SET available_at = now() WHERE state = 'queued'")
    held = kit.claimed(kit.dispatches(operation_id)[0])
    with pytest.raises(KeyReusedError):
        kit.accept(given=given, key=KEY)
    finish(kit, held, {"n": 1})
    assert kit.accept(key=KEY) == Accepted(operation_id, new=False, due=[])
    assert kit.operation_state(operation_id) == "succeeded"


def test_case_4_one_key_and_body_for_two_types_with_steps_of_one_name_are_independent(kit: Kit) -> None:
    single, twin = kit.accept("test.single", key=KEY), kit.accept("test.twin", key=KEY)
    assert single.new
    assert twin.new
    assert [d.step for d in (*single.due, *twin.due)] == ["only", "only"]
    finish(kit, kit.claimed(single.due[0]), {"of": "single"})
    assert kit.states(twin.operation_id) == {"only": "queued"}
    kit.fail(kit.claimed(twin.due[0]), steps.Outcome.FAILED)
    assert (kit.operation_state(single.operation_id), kit.operation_state(twin.operation_id)) == ("succeeded", "failed")
    assert kit.accept("test.single", key=KEY).operation_id == single.operation_id
    assert kit.accept("test.twin", key=KEY).operation_id == twin.operation_id


def test_case_48_one_key_in_two_tenants_is_two_operations(kit: Kit) -> None:
    shop, rival = kit.accept(key=KEY), kit.accept(given={"n": 2}, key=KEY, tenant="rival")
    assert shop.new
    assert rival.new
    assert operations.list_page(kit.database, "rival", state=None, operation_type=None, cursor=None, page_size=9)[0][0][
        "id"
    ] == str(rival.operation_id)


def test_options_are_kept_to_the_microsecond(kit: Kit) -> None:
    moment = datetime(2030, 1, 1, 0, 0, 0, 123456, UTC)
    options = Options(not_before=moment, deadline=moment + timedelta(days=400))
    assert kit.accept(key=KEY, options=options).new
    assert not kit.accept(key=KEY, options=options).new
    later = Options(not_before=moment + timedelta(microseconds=1), deadline=options.deadline)
    with pytest.raises(KeyReusedError) as caught:
        kit.accept(key=KEY, options=later)
    assert caught.value.fields == ["/not_before"]


def test_an_identity_that_can_neither_be_inserted_nor_read_is_unavailable(kit: Kit) -> None:
    """As while it is pruned again and again: bounded, and nothing is said of an operation that is not there."""
    kit.query("CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$")
    kit.query("CREATE TRIGGER nothing BEFORE INSERT ON identities FOR EACH ROW EXECUTE FUNCTION nothing()")
    with pytest.raises(UnavailableError):
        operations.accept(kit.database, kit.pipeline, "shop", KEY, Request("test.single", {"n": 1}))
    assert kit.value("SELECT count(*) FROM operations") == 0
