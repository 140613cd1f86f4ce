"""Tasks of the local Cloud Tasks, by the official client: requests, times, retries, names, refusals."""

from __future__ import annotations

import re
import time
from itertools import pairwise
from typing import Any

import pytest
from google.api_core import exceptions
from google.cloud import tasks_v2

from local.cloudtasks import CloudTasksServer
from local.cloudtasks.retrying import backoff
from tests.local.endpoint import Answer, Endpoint
from tests.local.tasks import Tasks, duration, in_seconds, wait_until

View = tasks_v2.Task.View
HOURS_720 = 720 * 3600


def test_request_is_what_was_asked_for(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    request = {
        "http_method": tasks_v2.HttpMethod.PUT,
        "headers": {"Content-Type": "application/json", "X-Own": "1", "User-Agent": "mine"},
        "body": b'{"ids": "only"}',
    }
    task = tasks.create(queue, endpoint.url(f"/{name}"), name="first-1", request=request)
    [received] = endpoint.wait(f"/{name}", 1)
    assert (received.method, received.body) == ("PUT", b'{"ids": "only"}')
    headers = received.headers
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Own"] == "1"
    assert headers["User-Agent"] == "Google-Cloud-Tasks"
    assert headers["X-CloudTasks-QueueName"] == name
    assert headers["X-CloudTasks-TaskName"] == "first-1"
    assert headers["X-CloudTasks-TaskRetryCount"] == headers["X-CloudTasks-TaskExecutionCount"] == "0"
    assert float(headers["X-CloudTasks-TaskETA"]) == pytest.approx(task.schedule_time.timestamp(), abs=1e-3)
    assert "Authorization" not in headers


def test_generated_name_and_post_are_the_defaults(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    task = tasks.create(queue, endpoint.url(f"/{name}"))
    assert re.fullmatch(rf"{queue}/tasks/\d+", task.name)
    [received] = endpoint.wait(f"/{name}", 1)
    assert received.method == "POST"
    assert "Content-Type" not in received.headers


def test_dispatch_is_signed(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    token = {"service_account_email": "tasks@project.iam.gserviceaccount.com"}
    tasks.create(tasks.queue(name), endpoint.url(f"/{name}"), request={"oidc_token": token})
    assert endpoint.wait(f"/{name}", 1)[0].headers["Authorization"].startswith("Bearer ")


def test_task_waits_for_its_schedule_time(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    began = time.monotonic()
    for seconds in (0.9, 0.6, 0.3):
        path = f"/{name}-{seconds}"
        tasks.create(queue, endpoint.url(path), schedule_time=in_seconds(seconds))
    for seconds in (0.3, 0.6, 0.9):
        assert endpoint.wait(f"/{name}-{seconds}", 1)[0].at - began >= seconds


@pytest.mark.parametrize(("seconds", "accepted"), [(HOURS_720 - 1, True), (HOURS_720 + 60, False)])
def test_case_15_720_hours_ahead(tasks: Tasks, endpoint: Endpoint, name: str, seconds: float, accepted: bool) -> None:
    queue = tasks.queue(name)
    if accepted:
        tasks.create(queue, endpoint.url(f"/{name}"), schedule_time=in_seconds(seconds))
        assert len(tasks.names(queue)) == 1
    else:
        with pytest.raises(exceptions.InvalidArgument, match="720"):
            tasks.create(queue, endpoint.url(f"/{name}"), schedule_time=in_seconds(seconds))


def test_name_is_taken_while_the_task_lives_and_after(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    url = endpoint.url(f"/{name}")
    tasks.create(queue, url, name="once", schedule_time=in_seconds(0.3))
    with pytest.raises(exceptions.AlreadyExists):
        tasks.create(queue, url, name="once")
    endpoint.wait(f"/{name}", 1)
    tasks.wait_empty(queue)
    with pytest.raises(exceptions.AlreadyExists, match="too recently"):
        tasks.create(queue, url, name="once")
    tasks.create(queue, url, name="deleted", schedule_time=in_seconds(3600))
    tasks.client.delete_task(name=f"{queue}/tasks/deleted")
    with pytest.raises(exceptions.AlreadyExists, match="too recently"):
        tasks.create(queue, url, name="deleted")
    assert len(endpoint.received(f"/{name}")) == 1


def test_name_is_free_again_after_its_tombstone(endpoint: Endpoint, name: str) -> None:
    server = CloudTasksServer(task_tombstone=0.2)
    tasks = Tasks(f"127.0.0.1:{server.start()}")
    queue, url = tasks.queue(name), endpoint.url(f"/{name}")
    tasks.create(queue, url, name="again")
    endpoint.wait(f"/{name}", 1)

    def creates() -> bool:
        try:
            tasks.create(queue, url, name="again")
        except exceptions.AlreadyExists:
            return False
        return True

    wait_until(creates)
    endpoint.wait(f"/{name}", 2)
    server.stop()


def test_failure_is_retried_with_backoff_and_counts(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    retry = {"min_backoff": duration(0.2), "max_backoff": duration(0.5), "max_doublings": 2}
    queue = tasks.queue(name, retry_config=retry)
    tasks.create(queue, endpoint.url(f"/{name}", 500, 404, 302, 204))
    requests = endpoint.wait(f"/{name}", 4)
    gaps = [later.at - earlier.at for earlier, later in pairwise(requests)]
    assert all(gap >= least - 0.01 for gap, least in zip(gaps, (0.2, 0.4, 0.5), strict=True)), gaps
    counts = [request.headers["X-CloudTasks-TaskRetryCount"] for request in requests]
    assert counts == ["0", "1", "2", "3"]
    assert [request.headers["X-CloudTasks-TaskExecutionCount"] for request in requests] == counts
    tasks.wait_empty(queue)


def test_retry_after_is_considered(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    tasks.create(queue, endpoint.url(f"/{name}", Answer(429, headers={"Retry-After": "1"}), Answer()))
    first, second = endpoint.wait(f"/{name}", 2)
    assert second.at - first.at >= 1


def test_task_is_given_up_after_its_attempts(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, retry_config={"max_attempts": 3, "max_backoff": duration(0.1)})
    task = tasks.create(queue, endpoint.url(f"/{name}", 500))
    tasks.wait_empty(queue)
    assert len(endpoint.received(f"/{name}")) == 3
    with pytest.raises(exceptions.NotFound):
        tasks.client.get_task(name=task.name)


def test_time_limit_and_attempts_must_both_be_reached(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    retry = {"max_attempts": 2, "max_retry_duration": duration(1), "max_backoff": duration(0.2)}
    queue = tasks.queue(name, retry_config=retry)
    tasks.create(queue, endpoint.url(f"/{name}", 500))
    tasks.wait_empty(queue)
    requests = endpoint.received(f"/{name}")
    assert len(requests) > 2
    assert requests[-1].at - requests[0].at >= 0.9


def test_last_attempt_tells_what_happened(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, retry_config={"min_backoff": duration(60)})
    task = tasks.create(queue, endpoint.url(f"/{name}", 503))
    wait_until(lambda: tasks.client.get_task(name=task.name).response_count == 1)
    found = tasks.client.get_task(name=task.name)
    assert found.dispatch_count == 1
    assert found.last_attempt.response_status.code == 14  # UNAVAILABLE
    assert found.schedule_time.timestamp() > time.time() + 50
    assert found.first_attempt.dispatch_time == found.last_attempt.dispatch_time


def test_dispatch_deadline_ends_the_request(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name, retry_config={"max_attempts": 2, "min_backoff": duration(0.1)})
    url = endpoint.url(f"/{name}", Answer(delay=60), Answer())
    tasks.create(queue, url, dispatch_deadline=duration(15))
    first, second = endpoint.wait(f"/{name}", 2)
    assert second.at - first.at > 14.5
    assert second.headers["X-CloudTasks-TaskExecutionCount"] == "0"  # no answer came
    assert second.headers["X-CloudTasks-TaskRetryCount"] == "1"


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ({"dispatch_deadline": duration(14)}, exceptions.InvalidArgument),
        ({"dispatch_deadline": duration(1801)}, exceptions.InvalidArgument),
        ({"request": {"body": b"x" * 1024 * 1024}}, exceptions.InvalidArgument),
        ({"request": {"http_method": tasks_v2.HttpMethod.GET, "body": b"x"}}, exceptions.InvalidArgument),
        ({"request": {"url": "ftp://127.0.0.1/"}}, exceptions.InvalidArgument),
        ({"name": "dot.ted"}, exceptions.InvalidArgument),
        ({"name": "x" * 501}, exceptions.InvalidArgument),
        ({"request": {"oauth_token": {"service_account_email": "a@b"}}}, exceptions.MethodNotImplemented),
    ],
    ids=["short", "long", "1 MB", "body of GET", "scheme", "name", "long name", "oauth"],
)
def test_tasks_out_of_bounds_are_refused(
    tasks: Tasks, endpoint: Endpoint, name: str, task: dict[str, Any], error: type[Exception]
) -> None:
    queue = tasks.queue(name)
    with pytest.raises(error):
        tasks.create(queue, endpoint.url(f"/{name}"), **task)
    assert tasks.names(queue) == set()


def test_views_show_or_hide_the_body(tasks: Tasks, endpoint: Endpoint, name: str) -> None:
    queue = tasks.queue(name)
    task = tasks.create(queue, endpoint.url(f"/{name}"), request={"body": b"secret"}, schedule_time=in_seconds(3600))
    assert task.http_request.body == b""
    full = tasks.client.get_task(request={"name": task.name, "response_view": View.FULL})
    assert full.http_request.body == b"secret"


def test_refused_connection_is_retried(tasks: Tasks, name: str) -> None:
    closed = Endpoint()
    url = closed.url("/gone")
    closed.close()
    queue = tasks.queue(name, retry_config={"max_attempts": 2, "max_backoff": duration(0.1)})
    tasks.create(queue, url)
    tasks.wait_empty(queue)


def test_intervals_double_then_grow_linearly_then_stay() -> None:
    retry = tasks_v2.RetryConfig.pb()(
        min_backoff=duration(10), max_backoff=duration(300), max_doublings=3, max_attempts=100
    )
    intervals = [backoff(retry, number) for number in range(1, 9)]
    assert intervals == [10, 20, 40, 80, 160, 240, 300, 300]
