"""Cloud Tasks as the second transport: the outbox's row stays the owner, whatever a queue does with its task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.api_core.exceptions import DeadlineExceeded

from local.cloudtasks import CloudTasksServer
from local.postgres import free_port
from local.pubsub import PubSubServer
from shared import envelope, pauses, relay, steps
from shared.database import Database
from shared.duties import undelivered
from shared.identity import Options
from shared.outbox import REFUSAL_LIMIT, UNCLAIMED_LIMIT, Outbox
from shared.pipeline import Pipeline
from shared.publisher import Dispatch, Publisher
from shared.steps import Outcome, Refusal
from shared.tasks import Created, Target, Tasks, task_name
from tests.database.cloud import Cloud, Queues, dispatch_of, publisher_client, tasks_client
from tests.database.kit import PIPELINE, Kit, drained

PACED = """
  test.paced:
    steps:
      only: {function: test_paced, transport: tasks, pacing: {per_second: 5, concurrent: 2}}
"""
TOPIC_OF_LATER = Target("delayed", "test_only", timedelta(seconds=40))
HUGE = "x" * 1_100_000  # a task has at most 1 MiB


class LosesAnswers:
    """The real client, whose answers are lost on their way back while `losing`."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.losing = True

    def create_task(self, **call: Any) -> Any:
        answer = self._client.create_task(**call)
        if self.losing:
            raise DeadlineExceeded("the client has waited long enough")  # type: ignore[no-untyped-call]
        return answer


@pytest.fixture(scope="module")
def addresses() -> Iterator[tuple[str, str]]:
    pubsub, tasks = PubSubServer(), CloudTasksServer()
    yield f"127.0.0.1:{pubsub.start()}", f"127.0.0.1:{tasks.start()}"
    pubsub.stop()
    tasks.stop()


@pytest.fixture
def kit(database: Database, database_url: str, tmp_path: Path) -> Iterator[Kit]:
    (tmp_path / "pipeline.yaml").write_text(PIPELINE + PACED)
    kit = Kit(database, Pipeline.load(tmp_path / "pipeline.yaml"), database_url)
    yield kit
    kit.close()


@pytest.fixture
def cloud(addresses: tuple[str, str]) -> Iterator[Cloud]:
    cloud = Cloud(addresses[0])
    yield cloud
    cloud.close()


@pytest.fixture
def queues(addresses: tuple[str, str], kit: Kit) -> Iterator[Queues]:
    queues = Queues(addresses[1], kit.pipeline.functions)
    yield queues
    queues.close()


@pytest.fixture
def outbox(kit: Kit, cloud: Cloud, queues: Queues) -> Outbox:
    return Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks())


def delayed(kit: Kit, seconds: float = 60, operation_type: str = "test.single") -> Dispatch:
    """Let a first attempt fail, and return the dispatch of the next one."""
    held = kit.claimed(kit.accept(operation_type).due[0])
    state, due = steps.fail(kit.database, held, Outcome.RETRY, "E", "e", timedelta(seconds=seconds))
    assert state == "queued"
    return due[0]


def later(kit: Kit, delay: timedelta) -> Any:
    """Accept an operation that is to wait so long."""
    return kit.accept(options=Options(not_before=datetime.now(UTC) + delay))


def pass_time(kit: Kit, seconds: float) -> None:
    """Let so much time pass, by moving every time that a row waits for."""
    by = f"interval '{seconds} seconds'"
    kit.query(f"UPDATE outbox SET available_at = available_at - {by}, publish_after = publish_after - {by}")
    kit.query(f"UPDATE steps SET available_at = available_at - {by} WHERE state = 'queued'")


def ticks(outbox: Outbox) -> tuple[int, int]:
    tick = relay.run_once(outbox)
    return tick.published, tick.failed


def test_case_13_the_task_of_a_large_operation_carries_ids_only(kit: Kit, outbox: Outbox, queues: Queues) -> None:
    held = kit.claimed(kit.accept(given={"text": "c4nary " * 300_000}).due[0])  # 2 MB
    _, due = steps.fail(kit.database, held, Outcome.RETRY, "E", "e", timedelta(seconds=60))
    outbox.publish_at_once(due)
    (task,) = queues.held()
    assert task.http_request.body == envelope.encode(held.operation_id, "test.single", "only", 2)
    assert task._pb.ByteSize() < 1000
    assert b"c4nary" not in task._pb.SerializeToString()
    assert (task.http_request.url, task.http_request.oidc_token.audience) == ("https://step.example",) * 2
    assert task.schedule_time == kit.value("SELECT available_at FROM steps")
    assert task.dispatch_deadline == timedelta(seconds=70)


@pytest.mark.parametrize(
    "delay", [timedelta(hours=720, seconds=-1), timedelta(hours=720, seconds=1), timedelta(days=90)], ids=str
)
def test_case_15_a_delay_is_the_databases_however_long(
    kit: Kit, outbox: Outbox, queues: Queues, cloud: Cloud, delay: timedelta
) -> None:
    accepted = later(kit, delay)
    assert accepted.due == []  # beyond the horizon there is nothing to hand over
    assert ticks(outbox) == (0, 0)
    pass_time(kit, delay.total_seconds() - 301)
    assert ticks(outbox) == (0, 0)  # a second before the horizon
    pass_time(kit, 60)
    assert ticks(outbox) == (1, 0)
    (task,) = queues.held()
    assert task.schedule_time == kit.value("SELECT available_at FROM outbox")
    assert kit.refusal(dispatch_of(task)) is Refusal.EARLY
    pass_time(kit, 241)
    held = kit.claimed(dispatch_of(task))
    assert kit.refusal(dispatch_of(task)) is Refusal.BUSY
    steps.succeed(kit.database, held, None)
    assert ticks(outbox) == (0, 0)
    assert (kit.states(accepted.operation_id), cloud.arrived()) == ({"only": "succeeded"}, [])


def test_a_writer_hands_over_what_is_due_within_the_horizon_and_the_relay_the_rest(
    kit: Kit, outbox: Outbox, queues: Queues
) -> None:
    near = later(kit, timedelta(minutes=4))
    far = later(kit, timedelta(minutes=6))
    outbox.publish_at_once([*near.due, *far.due])
    assert [dispatch_of(task) for task in queues.held()] == near.due
    waits = "SELECT round(extract(epoch FROM publish_after - available_at)) FROM outbox ORDER BY operation_id"
    assert kit.query(waits) == [[60], [-300]]
    assert ticks(outbox) == (0, 0)
    pass_time(kit, 70)
    assert ticks(outbox) == (1, 0)
    assert kit.query(waits) == [[60], [60]]  # a minute after it is due, not after it was handed over
    assert {dispatch_of(task).operation_id for task in queues.held()} == {near.operation_id, far.operation_id}


def test_a_paced_step_goes_by_its_own_queue_at_once_and_delayed(kit: Kit, outbox: Outbox, queues: Queues) -> None:
    first = kit.accept("test.paced").due[0]
    again = delayed(kit, 60, "test.paced")
    outbox.publish_at_once([first, again])
    assert {dispatch_of(task) for task in queues.held("test-paced")} == {first, again}
    assert queues.held() == []
    kit.query("UPDATE outbox SET publish_after = now()")
    assert ticks(outbox) == (2, 0)


def test_without_the_shortcut_the_relay_alone_hands_over_at_its_next_tick(
    kit: Kit, cloud: Cloud, queues: Queues
) -> None:
    outbox = Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks(), shortcut=False)
    due = kit.accept().due
    held = kit.claimed(kit.accept().due[0])
    _, again = steps.fail(kit.database, held, Outcome.RETRY, "E", "e", timedelta(seconds=60), outbox.writer_lease)
    kit.query("UPDATE outbox SET publish_after = outbox_turn(available_at, 0)")  # as accept would have been told
    outbox.publish_at_once([*due, *again])
    assert (cloud.arrived(), queues.held()) == ([], [])
    assert ticks(outbox) == (2, 0)
    assert (cloud.arrived(), [dispatch_of(task) for task in queues.held()]) == (due, again)


@pytest.mark.parametrize("by_relay", [False, True], ids=["writer", "relay"])
def test_case_30_created_but_the_client_timed_out_and_then_it_truly_fails(
    kit: Kit, cloud: Cloud, queues: Queues, *, by_relay: bool
) -> None:
    client = LosesAnswers(queues.client)
    outbox = Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks(client))
    dispatch = delayed(kit)
    if by_relay:
        kit.query("UPDATE outbox SET publish_after = now()")
        assert ticks(outbox) == (0, 1)
    else:
        outbox.publish_at_once([dispatch])
    assert [dispatch_of(task) for task in queues.held()] == [dispatch]  # created, though nobody knows
    away = Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks(tasks_client(f"127.0.0.1:{free_port()}")))
    kit.query("UPDATE outbox SET publish_after = now()")
    assert ticks(away) == (0, 1)
    assert kit.value("SELECT published = 0 AND publish_after < now() + interval '6 seconds' FROM outbox")
    client.losing = False
    kit.query("UPDATE outbox SET publish_after = now()")
    assert ticks(outbox) == (1, 0)
    tasks = queues.held()
    assert len(tasks) == (1 if by_relay else 2)  # the relay's repetition has the name of its first call
    pass_time(kit, 60)
    answers = [kit.claim(dispatch_of(task)) for task in tasks]
    assert sum(isinstance(answer, steps.Claim) for answer in answers) == 1
    kit.check_invariant()


def test_a_task_that_is_lost_is_created_again_under_another_name(kit: Kit, outbox: Outbox, queues: Queues) -> None:
    dispatch = delayed(kit)
    outbox.publish_at_once([dispatch])
    queues.purge()
    pass_time(kit, 121)
    assert ticks(outbox) == (1, 0)  # due by now, so by Pub/Sub
    paced = kit.accept("test.paced").due[0]
    outbox.publish_at_once([paced])
    queues.purge("test-paced")
    pass_time(kit, 61)
    relay.run_once(outbox)
    assert [dispatch_of(task) for task in queues.held("test-paced")] == [paced]


def test_a_name_that_is_taken_counts_as_handed_over(kit: Kit, queues: Queues) -> None:
    dispatch = delayed(kit)
    tasks = queues.tasks()
    assert tasks.create(TOPIC_OF_LATER, [dispatch]) == Created([], [], "")
    assert tasks.create(TOPIC_OF_LATER, [dispatch, dispatch]) == Created([], [], "")
    assert len(queues.held()) == 1
    queues.purge()
    assert tasks.create(TOPIC_OF_LATER, [dispatch]) == Created([], [], "")
    assert queues.held() == []  # and it proves nothing: the row's next turn has another name


def test_a_tasks_name_is_of_one_dispatch_and_one_turn(kit: Kit) -> None:
    one = kit.accept().due[0]
    other = kit.accept().due[0]
    turns = [one, other, *(Dispatch(one.operation_id, one.type, one.step, n, published=p) for n, p in [(2, 0), (1, 1)])]
    names = {task_name(dispatch) for dispatch in [*turns, Dispatch(one.operation_id, one.type, "last", 1)]}
    assert len(names) == 5
    assert task_name(Dispatch(one.operation_id, one.type, one.step, 1, "trace")) == task_name(one)
    assert all(name.isalnum() and len(name) == 64 for name in names)


def test_a_queue_that_does_not_exist_keeps_its_rows_and_holds_up_no_other(
    kit: Kit, cloud: Cloud, addresses: tuple[str, str]
) -> None:
    queues = Queues(addresses[1], kit.pipeline.functions, queues=("test-paced",))
    outbox = Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks())
    stuck = {delayed(kit, 60).operation_id for _ in range(20)}
    kit.query("UPDATE outbox SET publish_after = now() - interval '1 hour'")  # all of them come first
    fine = [kit.accept().due[0] for _ in range(10)]  # of the same step, but due now
    paced = [kit.accept("test.paced").due[0] for _ in range(10)]
    kit.query("UPDATE outbox SET publish_after = now() WHERE publish_after > now()")
    tick = relay.run_once(outbox, batch=10)
    assert (tick.published, tick.failed) == (20, 10)
    assert set(cloud.arrived()) == set(fine)
    assert {dispatch_of(task) for task in queues.held("test-paced")} == set(paced)
    queues.create("delayed")
    kit.query("UPDATE outbox SET publish_after = now() WHERE published = 0")
    assert relay.run_once(outbox, batch=10).published == 20
    assert {dispatch_of(task).operation_id for task in queues.held()} == stuck
    assert kit.value("SELECT count(*) FROM dead_letters") == 0
    queues.close()


def test_a_task_that_is_refused_is_parked_and_blocks_nothing(kit: Kit, outbox: Outbox, queues: Queues) -> None:
    poison = delayed(kit)
    good = {delayed(kit).operation_id for _ in range(20)}
    kit.query(f"UPDATE outbox SET traceparent = '{HUGE}' WHERE operation_id = '{poison.operation_id}'")
    kit.query("UPDATE outbox SET publish_after = now()")
    assert ticks(outbox) == (20, 1)
    assert {dispatch_of(task).operation_id for task in queues.held()} == good
    for _ in range(1, REFUSAL_LIMIT):
        kit.query(f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{poison.operation_id}'")
        assert ticks(outbox) == (0, 1)
    assert kit.states(poison.operation_id) == {"only": "exhausted"}
    assert kit.query("SELECT cause, state FROM dead_letters") == [["undeliverable", "open"]]
    kit.check_invariant()


def test_a_process_without_cloud_tasks_leaves_its_rows_to_the_relay(kit: Kit, cloud: Cloud, queues: Queues) -> None:
    without = Outbox(kit.database, kit.pipeline, cloud.publisher)
    without.publish_at_once([delayed(kit), kit.accept("test.paced").due[0]])
    assert ticks(Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks())) == (2, 0)


def test_credentials_that_cannot_be_had_are_a_hand_over_that_failed(kit: Kit) -> None:
    from google.auth.exceptions import DefaultCredentialsError

    def no_credentials() -> Any:
        raise DefaultCredentialsError("none here")  # type: ignore[no-untyped-call]

    tasks = Tasks("p", "europe-west2", "tasks@p.example", {"test_only": "https://step.example"}, client=no_credentials)
    dispatches = [kit.accept().due[0] for _ in range(3)]
    made = tasks.create(TOPIC_OF_LATER, dispatches)
    assert (made.refused, set(made.left)) == ([], set(dispatches))
    assert "DefaultCredentialsError" in made.problem


# The backlog rule, and what nobody claims.


def published(kit: Kit, outbox: Outbox, count: int, operation_type: str = "test.single") -> list[Dispatch]:
    """Accept operations whose rows were handed over once each and are due again, oldest first."""
    due = [kit.accept(operation_type).due[0] for _ in range(count)]
    outbox.publish_at_once(due)
    kit.query("UPDATE outbox SET publish_after = now()")
    relay.run_once(outbox)
    kit.query("UPDATE outbox SET publish_after = now()")
    return due


def test_a_backlog_is_not_published_again_while_it_is_consumed(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    lost, claimed, *waiting = published(kit, outbox, 5)
    cloud.arrived()
    kit.claimed(claimed)
    assert ticks(outbox) == (1, 0)
    assert cloud.arrived() == [lost]  # older than what was claimed, so lost and not waiting
    fresh = kit.accept().due[0]
    kit.query(f"UPDATE outbox SET publish_after = now() WHERE operation_id = '{fresh.operation_id}'")
    assert ticks(outbox) == (1, 0)
    assert cloud.arrived() == [fresh]  # never published by the relay, so perhaps by nobody
    kit.query("UPDATE progress SET claimed_at = now() - interval '3 minutes'")
    assert ticks(outbox) == (3, 0)  # nobody consumes: they may be lost
    assert set(cloud.arrived()) == set(waiting)


def test_a_paced_backlog_waits_in_its_queue_from_the_first_turn_on(kit: Kit, outbox: Outbox, queues: Queues) -> None:
    relay.run_once(outbox)  # makes the rows of progress
    due = [kit.accept("test.paced").due[0] for _ in range(4)]
    outbox.publish_at_once(due)
    kit.claimed(due[0])
    kit.query("UPDATE outbox SET publish_after = now()")
    assert ticks(outbox) == (0, 0)  # a second task for each would take the rate of one that waits
    queues.purge("test-paced")
    kit.query("UPDATE progress SET claimed_at = now() - interval '3 minutes'")
    assert ticks(outbox) == (3, 0)
    assert {dispatch_of(task) for task in queues.held("test-paced")} == set(due[1:])


def test_a_paced_row_that_was_given_back_does_not_wait_for_the_backlog(
    kit: Kit, cloud: Cloud, outbox: Outbox, queues: Queues
) -> None:
    relay.run_once(outbox)
    kit.claimed(kit.accept("test.paced").due[0])
    away = Outbox(kit.database, kit.pipeline, cloud.publisher, queues.tasks(tasks_client(f"127.0.0.1:{free_port()}")))
    dispatch = kit.accept("test.paced").due[0]
    away.publish_at_once([dispatch])
    assert ticks(outbox) == (1, 0)
    assert [dispatch_of(task) for task in queues.held("test-paced")] == [dispatch]


def test_what_nobody_claims_for_a_day_needs_a_person(kit: Kit, cloud: Cloud, outbox: Outbox) -> None:
    lost, busy, paused, young = (
        kit.accept(kind).due[0] for kind in ("test.single", "test.twin", "test.paid", "test.line")
    )
    kit.query(f"UPDATE outbox SET published = {UNCLAIMED_LIMIT}, publish_after = now()")
    kit.query(f"UPDATE outbox SET published = published - 1 WHERE operation_id = '{young.operation_id}'")
    pauses.pause(kit.database, kit.pipeline, "provider", "till", "ada@example.com", "it is being mended")
    assert relay.lease_due_rows(kit.database, kit.pipeline) == [young]  # the others have had their turns
    kit.claimed(busy)
    assert drained(undelivered.batches, outbox, kit.pipeline, batch=1) == {"undelivered": 1}
    assert kit.states(lost.operation_id) == {"only": "exhausted"}
    assert kit.operation_state(lost.operation_id) == "needs_review"
    assert kit.query("SELECT operation_id, cause, state FROM dead_letters") == [
        [lost.operation_id, "undeliverable", "open"]
    ]
    assert kit.refusal(lost) is Refusal.DONE
    kit.check_invariant()
    pauses.resume(kit.database, "provider", "till")
    assert drained(undelivered.batches, outbox, kit.pipeline) == {"undelivered": 1}
    assert kit.states(paused.operation_id) == {"only": "exhausted"}


def test_the_last_turn_of_a_row_is_waited_for(kit: Kit, outbox: Outbox) -> None:
    dispatch = kit.accept().due[0]
    kit.query(f"UPDATE outbox SET published = {UNCLAIMED_LIMIT}")  # leased for an hour by its last turn
    assert drained(undelivered.batches, outbox, kit.pipeline) == {"undelivered": 0}
    kit.claimed(dispatch)


def test_the_pulse_counts_what_is_late_and_not_what_waits_or_is_held(kit: Kit, outbox: Outbox) -> None:
    kit.accept()  # its writer's
    later(kit, timedelta(days=1))
    outbox.publish_at_once([delayed(kit)])
    tick = relay.run_once(outbox)
    assert (tick.unpublished, tick.unclaimed, tick.held) == (0, 0, 0)
    kit.query("UPDATE outbox SET publish_after = now() - interval '1 second', published = 0")
    kit.query("UPDATE outbox SET published = 1, available_at = now() - interval '9 minutes' WHERE step = 'only'")
    pauses.pause(kit.database, kit.pipeline, "tenant", "shop", "ada@example.com", "it asked for it")
    tick = relay.run_once(outbox)
    assert (tick.published, tick.unpublished, tick.unclaimed, tick.oldest_age, tick.held) == (0, 0, 0, 0, 3)
    pauses.resume(kit.database, "tenant", "shop")
    nowhere = Outbox(kit.database, kit.pipeline, Publisher("p", lambda: publisher_client(f"127.0.0.1:{free_port()}")))
    kit.query("UPDATE outbox SET published = 0")
    tick = relay.run_once(nowhere)
    assert (tick.published, tick.unclaimed, tick.held) == (0, 0, 0)
    assert tick.oldest_age > 500
