"""The outbox and the relay against a real Pub/Sub server: nothing is lost, blocks the rest or is orphaned."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from local.postgres import free_port
from local.pubsub import PubSubServer
from shared import operations, reconcile, relay, steps
from shared.errors import LeaseLostError
from shared.outbox import REFUSAL_LIMIT, Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch, Publisher, PublishError
from shared.relay import Tick
from shared.steps import Outcome
from tests.database.cloud import Cloud, publisher_client
from tests.database.kit import PIPELINE, Kit

POISON = "x" * 2000  # an attribute of a message has at most 1,024 bytes
SCHEDULE = 10.0  # seconds that the random schedule runs


@pytest.fixture(scope="module")
def pubsub() -> Iterator[str]:
    server = PubSubServer()
    yield f"127.0.0.1:{server.start()}"
    server.stop()


@pytest.fixture
def cloud(pubsub: str) -> Iterator[Cloud]:
    cloud = Cloud(pubsub)
    yield cloud
    cloud.close()


@pytest.fixture
def outbox(kit: Kit, cloud: Cloud) -> Outbox:
    return Outbox(kit.database, kit.pipeline, cloud.publisher)


def make_due(kit: Kit, where: str = "true") -> None:
    """Let the writers' leases and the relays' backoff end, as if the time had passed."""
    kit.query(f"UPDATE outbox SET publish_after = now() - interval '1 second' WHERE {where}")


def counts(tick: Tick) -> tuple[int, int]:
    return tick.published, tick.failed


def test_a_due_row_is_published_as_the_dispatch_that_it_is(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    accepted = kit.accept("test.line")
    kit.query(f"UPDATE outbox SET traceparent = '{trace}'")
    make_due(kit)
    assert counts(relay.run_once(outbox)) == (1, 0)
    assert cloud.arrived("test-first") == [Dispatch(accepted.operation_id, "test.line", "first", 1, trace)]
    assert len(kit.dispatches(accepted.operation_id)) == 1  # it dies in the claim, not here
    assert kit.claimed(accepted.due[0]).attempt == 1
    kit.check_invariant()


def test_a_row_is_its_writers_for_a_minute_and_then_the_relays_for_longer_each_time(
    kit: Kit, cloud: Cloud, outbox: Outbox
) -> None:
    kit.accept()
    assert counts(relay.run_once(outbox)) == (0, 0)
    waits = []
    for _ in range(9):
        make_due(kit)
        assert counts(relay.run_once(outbox)) == (1, 0)
        assert counts(relay.run_once(outbox)) == (0, 0)
        waits.append(round(float(kit.value("SELECT extract(epoch FROM publish_after - now()) / 60 FROM outbox"))))
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]  # minutes
    assert len(cloud.arrived()) == 9
    assert kit.value("SELECT dispatch FROM outbox") == 1  # publishing again repeats the number


def test_case_21_a_transaction_that_commits_late_is_not_skipped(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    late = kit.accept(key="late").operation_id
    with kit.database.transaction() as transaction:
        # the first writer inserts and holds; its row is older than the one that commits meanwhile
        transaction.connection.execute("DELETE FROM outbox")
        transaction.connection.execute(
            "INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after) "
            f"VALUES ('{late}', 'only', 'test.single', 1, now(), now())"
        )
        early = kit.accept(key="early").operation_id
        make_due(kit, f"operation_id = '{early}'")
        assert counts(relay.run_once(outbox)) == (1, 0)
        assert [one.operation_id for one in cloud.arrived()] == [early]
    make_due(kit, f"operation_id = '{late}'")
    assert counts(relay.run_once(outbox)) == (1, 0)
    assert [one.operation_id for one in cloud.arrived()] == [late]
    kit.check_invariant()


def test_case_22_a_message_that_pubsub_refuses_is_parked_and_blocks_nothing(
    kit: Kit, cloud: Cloud, outbox: Outbox
) -> None:
    poison = kit.accept().operation_id
    good = {kit.accept().operation_id for _ in range(100)}
    kit.query(f"UPDATE outbox SET traceparent = '{POISON}' WHERE operation_id = '{poison}'")
    make_due(kit)
    kit.query(f"UPDATE outbox SET publish_after = now() - interval '1 hour' WHERE operation_id = '{poison}'")
    assert counts(relay.run_once(outbox)) == (100, 1)
    assert Counter(one.operation_id for one in cloud.arrived()) == Counter(good)
    for refused in range(1, REFUSAL_LIMIT):
        row = kit.query(f"SELECT refused, publish_after > now() FROM outbox WHERE operation_id = '{poison}'")
        assert row == [[refused, True]]  # visible, and backed off
        make_due(kit, f"operation_id = '{poison}'")
        assert counts(relay.run_once(outbox)) == (0, 1)
    assert kit.states(poison) == {"only": "exhausted"}
    assert kit.operation_state(poison) == "needs_review"
    assert kit.dispatches(poison) == []
    assert kit.query("SELECT operation_id, cause, state, error_kind FROM dead_letters") == [
        [poison, "undeliverable", "open", "undeliverable"]
    ]
    kit.check_invariant()


def test_case_22_many_poison_rows_among_good_ones(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    ids = [kit.accept().operation_id for _ in range(64)]
    bad = set(ids[::7])
    for one in bad:
        kit.query(f"UPDATE outbox SET traceparent = '{POISON}' WHERE operation_id = '{one}'")
    make_due(kit)
    assert counts(relay.run_once(outbox)) == (64 - len(bad), len(bad))
    assert {one.operation_id for one in cloud.arrived()} == set(ids) - bad


def test_case_23_three_relays_one_of_them_paused_after_its_claim(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    ids = {kit.accept().operation_id for _ in range(1000)}
    make_due(kit)
    paused = relay.lease_due_rows(kit.database, kit.pipeline, 100)  # it leased, and says nothing more
    with ThreadPoolExecutor(2) as pool:
        ticks = list(pool.map(lambda _: relay.run_once(outbox, batch=150), range(2)))
    assert sum(tick.published for tick in ticks) == 900
    make_due(kit, "published = 1")  # its lease ends: every row that was published once is due again
    assert relay.run_once(outbox).published == 1000
    assert outbox.publish_leased(paused).published == 100  # and then it goes on
    seen = Counter(one.operation_id for one in cloud.arrived())
    assert set(seen) == ids
    assert max(seen.values()) <= 3
    assert sum(seen.values()) == 2000


def test_case_24_published_but_the_relay_died_so_it_is_published_again_and_runs_once(
    kit: Kit, cloud: Cloud, outbox: Outbox
) -> None:
    accepted = kit.accept()
    make_due(kit)
    leased = relay.lease_due_rows(kit.database, kit.pipeline, 10)
    cloud.publisher.publish("test-only", leased)  # and here it is killed
    make_due(kit)
    assert counts(relay.run_once(outbox)) == (1, 0)
    first, second = cloud.arrived()
    assert first == second == accepted.due[0]
    held = kit.claimed(first)
    assert kit.refusal(second) is steps.Refusal.BUSY
    steps.succeed(kit.database, held, {"done": 1})
    assert kit.claim(second) == steps.NotClaimed(steps.Refusal.DONE, {"done": 1})
    assert kit.value("SELECT count(*) FROM attempts") == 1
    assert counts(relay.run_once(outbox)) == (0, 0)


def test_case_24_the_relay_dies_before_it_publishes(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    accepted = kit.accept()
    make_due(kit)
    relay.lease_due_rows(kit.database, kit.pipeline, 10)
    assert counts(relay.run_once(outbox)) == (0, 0)  # leased for a minute
    assert cloud.arrived() == []
    make_due(kit)
    assert counts(relay.run_once(outbox)) == (1, 0)
    assert cloud.arrived() == accepted.due


def test_ten_thousand_rows_drain_in_one_tick(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    template = kit.accept().operation_id
    copies = "SELECT uuidv7() AS id FROM generate_series(1, 9999)"
    kit.query(f"""
        WITH fresh AS ({copies}), o AS (
            INSERT INTO operations (id, tenant, type, key, input, steps_left, steps_alive)
            SELECT fresh.id, 'shop', 'test.single', fresh.id::text, '{{}}', 1, 1 FROM fresh RETURNING id
        ), s AS (
            INSERT INTO steps (operation_id, step, state, needs_left, dispatch, available_at)
            SELECT id, 'only', 'queued', 0, 1, now() FROM o RETURNING operation_id
        )
        INSERT INTO outbox (operation_id, step, type, dispatch, available_at, publish_after)
        SELECT operation_id, 'only', 'test.single', 1, now(), now() FROM s
    """)
    make_due(kit, f"operation_id = '{template}'")
    tick = relay.run_once(outbox)
    assert (tick.published, tick.failed, tick.unpublished, tick.unclaimed) == (10_000, 0, 0, 10_000)
    arrived = Counter(one.operation_id for one in cloud.arrived())
    assert (len(arrived), max(arrived.values())) == (10_000, 1)


def test_the_writers_publish_that_fails_gives_its_rows_to_the_relay(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    nowhere = Publisher("p", client=lambda: publisher_client(f"127.0.0.1:{free_port()}"))
    accepted = [kit.accept(kind) for kind in ("test.single", "test.fan")]
    due = [dispatch for one in accepted for dispatch in one.due]
    assert counts(relay.run_once(outbox)) == (0, 0)
    Outbox(kit.database, kit.pipeline, nowhere).publish_at_once(due)  # raises nothing
    assert counts(relay.run_once(outbox)) == (3, 0)
    arrived = [one for topic in ("test-only", "test-left", "test-right") for one in cloud.arrived(topic)]
    assert set(arrived) == set(due)


def test_a_poison_row_and_an_unknown_step_never_disturb_their_writer(kit: Kit, outbox: Outbox) -> None:
    poison = Dispatch(kit.accept().operation_id, "test.single", "only", 1, POISON)
    gone = Dispatch(kit.accept().operation_id, "test.single", "gone", 1)
    fine = kit.accept("test.twin").due[0]
    outbox.publish_at_once([gone, poison, fine])
    assert kit.value("SELECT count(*) FROM outbox WHERE publish_after <= now()") == 1  # the poison row is the relay's
    kit.check_invariant()


def test_credentials_that_cannot_be_had_are_a_publish_that_failed(kit: Kit) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def no_credentials() -> Any:
        raise DefaultCredentialsError("none here")  # type: ignore[no-untyped-call]

    publisher = Publisher("p", client=no_credentials)
    with pytest.raises(PublishError):
        publisher.publish("test-only", [kit.accept().due[0]])
    Outbox(kit.database, kit.pipeline, publisher).publish_at_once([kit.accept().due[0]])
    make_due(kit)
    assert counts(relay.run_once(Outbox(kit.database, kit.pipeline, publisher))) == (0, 2)


def test_a_topic_that_does_not_exist_keeps_its_rows_and_holds_up_no_other(kit: Kit, pubsub: str) -> None:
    cloud = Cloud(pubsub, topics=("test-twin",))
    outbox = Outbox(kit.database, kit.pipeline, cloud.publisher)
    stuck = {kit.accept().operation_id for _ in range(50)}
    make_due(kit)
    kit.query("UPDATE outbox SET publish_after = now() - interval '1 hour'")  # all of them come first
    fine = {kit.accept("test.twin").operation_id for _ in range(30)}
    make_due(kit, "type = 'test.twin'")
    assert counts(relay.run_once(outbox, batch=10)) == (30, 10)
    assert {one.operation_id for one in cloud.arrived("test-twin")} == fine
    cloud.create("test-only")
    make_due(kit, "published = 0")
    assert counts(relay.run_once(outbox, batch=10)) == (50, 0)
    assert {one.operation_id for one in cloud.arrived("test-only")} == stuck
    assert kit.value("SELECT count(*) FROM dead_letters") == 0
    cloud.close()


def test_a_step_that_the_pipeline_no_longer_has_is_parked_as_incompatible(
    kit: Kit, cloud: Cloud, outbox: Outbox, tmp_path: Any
) -> None:
    operation_id = kit.accept().operation_id
    other = kit.accept("test.twin").operation_id
    (tmp_path / "next.yaml").write_text(PIPELINE.replace("test.single", "test.renamed"))
    deployed = Outbox(kit.database, Pipeline.load(tmp_path / "next.yaml"), cloud.publisher)
    for refused in range(REFUSAL_LIMIT):  # an older relay may run beside a newer intake for minutes
        assert kit.states(operation_id) == {"only": "queued"}
        make_due(kit)
        assert counts(relay.run_once(deployed)) == (1, 1), refused
    assert len(cloud.arrived("test-twin")) == REFUSAL_LIMIT
    assert kit.states(operation_id) == {"only": "exhausted"}
    assert kit.query("SELECT operation_id, cause, state FROM dead_letters") == [[operation_id, "incompatible", "open"]]
    assert [one.operation_id for one in kit.dispatches(other)] == [other]
    kit.check_invariant()


def test_a_refusal_of_a_row_that_was_claimed_meanwhile_changes_nothing(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    accepted = kit.accept()
    refused = Dispatch(accepted.operation_id, "test.single", "only", 1, POISON)
    kit.query(f"UPDATE outbox SET refused = {REFUSAL_LIMIT - 1}")
    held = kit.claimed(accepted.due[0])
    assert outbox.publish_leased([refused]).published == 0
    assert kit.states(accepted.operation_id) == {"only": "running"}
    assert kit.fail(held) == "queued"
    assert outbox.publish_leased([refused]).published == 0  # an older dispatch than the row's
    assert kit.query("SELECT dispatch, refused FROM outbox") == [[2, 0]]
    kit.check_invariant()


class Schedule:
    """Threads that do everything at once to the same few operations, in no order, and stop by themselves."""

    def __init__(self, kit: Kit, outbox: Outbox, seed: int) -> None:
        self.kit, self.outbox = kit, outbox
        self.until = time.monotonic() + SCHEDULE
        self.done: Counter[str] = Counter()
        self.failures: list[BaseException] = []
        self._seed = seed
        self._known: list[UUID] = []
        self._lock = threading.Lock()

    def run(self) -> None:
        moves = [self.accept, self.deliver, self.deliver, self.deliver, self.cancel, self.time_passes]
        threads = [threading.Thread(target=self._repeat, args=(move, n)) for n, move in enumerate(moves)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _repeat(self, move: Callable[[random.Random], None], number: int) -> None:
        chance = random.Random(self._seed + number)
        try:
            while time.monotonic() < self.until and not self.failures:
                move(chance)
        except BaseException as error:  # noqa: BLE001 - shown by the test
            self.failures.append(error)

    def _some(self, chance: random.Random) -> UUID | None:
        with self._lock:
            return chance.choice(self._known[-40:]) if self._known else None

    def accept(self, chance: random.Random) -> None:
        kind = chance.choice(["test.single", "test.line", "test.fan"])
        accepted = self.kit.accept(kind)
        with self._lock:
            self._known.append(accepted.operation_id)
        self.done["accepted"] += 1
        time.sleep(0.01)

    def deliver(self, chance: random.Random) -> None:
        """Deliver a message that stands in the outbox, perhaps twice, and settle it somehow."""
        operation_id = self._some(chance)
        if operation_id is None:
            return
        rows = self.kit.database.run("read_operation", operation_id=operation_id, tenant="shop")[0]
        ready = [step["step"] for step in rows.steps if step["state"] in {"queued", "running"}]
        if not ready:
            return
        name = chance.choice(ready)
        dispatch = Dispatch(operation_id, rows.type, name, chance.choice([1, 1, 2, 3]))
        held = self.kit.claim(dispatch)
        if not isinstance(held, steps.Claim):
            self.done[held.refusal] += 1
            return
        self._settle(held, chance)

    def _settle(self, held: steps.Claim, chance: random.Random) -> None:
        try:
            match chance.choice(["succeed", "succeed", "in transaction", "retry", "failed", "die", "unresolved"]):
                case "succeed":
                    steps.succeed(self.kit.database, held, {"by": held.fence})
                case "in transaction":
                    with self.kit.database.transaction() as transaction:
                        steps.hold(transaction, held)
                        steps.succeed(transaction, held, None)
                case "retry":
                    self.kit.fail(held, Outcome.RETRY)
                case "failed" | "unresolved" as outcome:
                    self.kit.fail(held, Outcome(outcome))
                case _:
                    self.done["died"] += 1
        except LeaseLostError:
            self.done["lost"] += 1
        else:
            self.done["settled"] += 1

    def cancel(self, chance: random.Random) -> None:
        operation_id = self._some(chance)
        if operation_id is not None and chance.random() < 0.3:
            try:
                operations.cancel(self.kit.database, "shop", operation_id)
                self.done["cancelled"] += 1
            except operations.NotCancellableError:
                self.done["not cancellable"] += 1
        time.sleep(0.01)

    def time_passes(self, chance: random.Random) -> None:
        """End a few leases and the rows' waits, then let reconcile and the relay run."""
        connection = self.kit.database
        with connection.transaction() as transaction:
            transaction.connection.execute(
                "UPDATE steps SET lease_expires_at = now() - interval '1 second' WHERE (operation_id, step) IN "
                "(SELECT operation_id, step FROM steps WHERE state = 'running' AND random() < 0.5 "
                "ORDER BY operation_id LIMIT 5 FOR NO KEY UPDATE SKIP LOCKED)"
            )
        with connection.transaction() as transaction:
            transaction.connection.execute(
                "UPDATE outbox SET publish_after = now() WHERE (operation_id, step) IN "
                "(SELECT operation_id, step FROM outbox WHERE random() < 0.5 LIMIT 20 FOR NO KEY UPDATE SKIP LOCKED)"
            )
        sweep = reconcile.run_once(self.outbox, self.kit.pipeline)
        tick = relay.run_once(self.outbox, batch=10)
        self.done.update(requeued=sweep.requeued, exhausted=sweep.exhausted, published=tick.published)
        assert sweep.started == 0
        if chance.random() < 0.2:
            time.sleep(0.02)


@pytest.mark.slow
def test_no_interleaving_of_cancel_settle_relay_reconcile_and_claim_orphans_a_row(kit: Kit, outbox: Outbox) -> None:
    seed = random.SystemRandom().randrange(2**32)
    schedule = Schedule(kit, outbox, seed)
    schedule.run()
    assert schedule.failures == [], f"seed {seed}"
    kit.check_invariant()
    assert min(schedule.done[what] for what in ("accepted", "settled", "cancelled", "requeued", "published")) > 10
    wrong = kit.query("""
        SELECT o.id, o.state, o.steps_left, o.steps_alive FROM operations o WHERE
            o.steps_left <> (SELECT count(*) FROM steps s WHERE s.operation_id = o.id AND s.state <> 'succeeded')
            OR o.steps_alive <> (SELECT count(*) FROM steps s WHERE s.operation_id = o.id
                AND s.state IN ('queued', 'running'))
    """)
    assert wrong == [], f"seed {seed}"
    _let_everything_end(kit, outbox)


def _let_everything_end(kit: Kit, outbox: Outbox) -> None:
    """Whatever is left comes to rest when leases end and every row is delivered: nothing waits for ever."""
    for _ in range(30):
        kit.expire_leases()
        reconcile.run_once(outbox, kit.pipeline)
        left = kit.query("SELECT operation_id, type, step, dispatch FROM outbox")
        kit.query("UPDATE steps SET available_at = now() WHERE state = 'queued'")
        for row in left:
            held = kit.claim(Dispatch(*row))
            if isinstance(held, steps.Claim):
                steps.succeed(kit.database, held, None)
        if not left:
            break
    stuck = kit.query("SELECT id, state FROM operations WHERE state IN ('requested', 'running')")
    assert stuck == []
    kit.check_invariant()


def test_a_pause_of_the_retry_is_kept_by_the_outbox(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    accepted = kit.accept()
    steps.fail(kit.database, kit.claimed(accepted.due[0]), Outcome.RETRY, "E", "e", timedelta(hours=1))
    assert counts(relay.run_once(outbox)) == (0, 0)
    assert cloud.arrived() == []
    assert kit.value("SELECT publish_after = available_at - outbox_horizon() AND NOT handed_over FROM outbox")
