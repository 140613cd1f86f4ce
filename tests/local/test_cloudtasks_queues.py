"""Queues of the local Cloud Tasks, by the official client: limits, pauses, purges, names."""

from __future__ import annotations

import time
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2
from google.protobuf.field_mask_pb2 import FieldMask

from local.cloudtasks import CloudTasksServer
from tests.local.endpoint import Answer, Endpoint
from tests.local.tasks import LOCATION, Tasks, duration, in_seconds, wait_until

STATE = tasks_v2.Queue.State


def test_defaults_are_filled_in(tasks: Tasks, name: str) -> None:
    queue = tasks.client.get_queue(name=tasks.queue(name))
    assert queue.state == STATE.RUNNING
    assert queue.rate_limits.max_dispatches_per_second == 500
    assert queue.rate_limits.max_concurrent_dispatches == 1000
    assert queue.retry_config.max_attempts == 100
    assert queue.retry_config.max_doublings == 16
    assert queue.retry_config.min_backoff.total_seconds() == 0.1
    assert queue.retry_config.max_backoff.total_seconds() == 3600


def test_dispatch_rate_is_a_token_bucket(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, rate_limits={"max_dispatches_per_second": 5})
    url = endpoint.url(f"/{name}")
    began = time.monotonic()
    for _ in range(12):
        tasks.create(queue, url)
    requests = endpoint.wait(f"/{name}", 12)
    assert requests[11].at - began >= 6 / 5  # five of the twelve at once, the sixth of the rest after 7/5 s
    assert requests[5].at - began >= 0.9 / 5


def test_concurrency_is_limited(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, rate_limits={"max_concurrent_dispatches": 2})
    url = endpoint.url(f"/{name}", Answer(delay=0.1))
    for _ in range(8):
        tasks.create(queue, url)
    endpoint.wait(f"/{name}", 8)
    tasks.wait_empty(queue)
    assert endpoint.peak(f"/{name}") == 2


def test_paused_queue_keeps_its_tasks(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    assert tasks.client.pause_queue(name=queue).state == STATE.PAUSED
    task = tasks.create(queue, endpoint.url(f"/{name}"))
    time.sleep(0.3)
    assert endpoint.received(f"/{name}") == []
    assert tasks.names(queue) == {task.name}
    assert tasks.client.resume_queue(name=queue).state == STATE.RUNNING
    endpoint.wait(f"/{name}", 1)


def test_run_task_ignores_pause_and_schedule(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    tasks.client.pause_queue(name=queue)
    task = tasks.create(queue, endpoint.url(f"/{name}"), schedule_time=in_seconds(3600))
    assert tasks.client.run_task(name=task.name).name == task.name
    endpoint.wait(f"/{name}", 1)
    tasks.wait_empty(queue)
    with pytest.raises(exceptions.NotFound):
        tasks.client.run_task(name=task.name)


def test_purge_deletes_what_waits(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    for _ in range(3):
        tasks.create(queue, endpoint.url(f"/{name}"), schedule_time=in_seconds(1))
    assert tasks.client.purge_queue(name=queue).purge_time is not None
    assert tasks.names(queue) == set()
    time.sleep(1.2)
    assert endpoint.received(f"/{name}") == []


def test_update_changes_the_limits_at_once(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, rate_limits={"max_dispatches_per_second": 0.01})
    for _ in range(3):
        tasks.create(queue, endpoint.url(f"/{name}"))
    endpoint.wait(f"/{name}", 1)
    changed = tasks.client.update_queue(
        request={
            "queue": {"name": queue, "rate_limits": {"max_dispatches_per_second": 100}},
            "update_mask": FieldMask(paths=["rate_limits.max_dispatches_per_second"]),
        }
    )
    assert changed.rate_limits.max_dispatches_per_second == 100
    assert changed.rate_limits.max_concurrent_dispatches == 1000
    endpoint.wait(f"/{name}", 3)


def test_update_creates_a_missing_queue(tasks: Tasks, name: str) -> None:
    full = f"{LOCATION}/queues/{name}"
    assert tasks.client.update_queue(request={"queue": {"name": full}}).state == STATE.RUNNING
    assert tasks.client.get_queue(name=full).name == full


@pytest.mark.parametrize(
    "settings",
    [
        {"rate_limits": {"max_dispatches_per_second": 501}},
        {"rate_limits": {"max_concurrent_dispatches": 5001}},
        {"retry_config": {"max_attempts": -2}},
        {"retry_config": {"min_backoff": duration(10), "max_backoff": duration(1)}},
    ],
    ids=["rate", "concurrency", "attempts", "backoff"],
)
def test_settings_out_of_bounds_are_refused(tasks: Tasks, name: str, settings: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        tasks.queue(name, **settings)


@pytest.mark.parametrize("bad", ["under_score", "x" * 101, ""])
def test_malformed_queue_names_are_refused(tasks: Tasks, bad: str) -> None:
    with pytest.raises(exceptions.InvalidArgument):
        tasks.queue(bad)


def test_queue_names(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    with pytest.raises(exceptions.AlreadyExists):
        tasks.queue(name)
    assert queue in {each.name for each in tasks.client.list_queues(parent=LOCATION)}
    tasks.client.delete_queue(name=queue)
    for missing in (queue, f"{LOCATION}/queues/nowhere"):
        with pytest.raises(exceptions.NotFound):
            tasks.client.get_queue(name=missing)
        with pytest.raises(exceptions.NotFound):
            tasks.create(missing, endpoint.url(f"/{name}"))
    with pytest.raises(exceptions.FailedPrecondition, match="too recently"):
        tasks.queue(name)


def test_deleted_queue_name_is_free_again_in_the_end(name: str) -> None:
    server = CloudTasksServer(queue_tombstone=0.2)
    tasks = Tasks(f"127.0.0.1:{server.start()}")
    queue = tasks.queue(name)
    tasks.client.delete_queue(name=queue)
    with pytest.raises(exceptions.FailedPrecondition):
        tasks.queue(name)
    wait_until(lambda: _creates(tasks, name))
    server.stop()


def _creates(tasks: Tasks, name: str) -> bool:
    try:
        tasks.queue(name)
    except exceptions.FailedPrecondition:
        return False
    return True
