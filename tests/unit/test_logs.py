"""Structured logs: the shape Cloud Logging reads, ids on every line, and no foreign text (case 49)."""

import json
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shared import logs
from shared.errors import PermanentError, UnavailableError
from shared.logs import CloudFormatter, bind, bound, describe

CANARY = "c4nary"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
ROOT = Path(__file__).parents[2]
LABELS = "logging.googleapis.com/labels"


class Lines(logging.Handler):
    """Keeps the lines that were logged, as Cloud Logging would read them."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(CloudFormatter("my-project"))
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    @property
    def last(self) -> dict[str, Any]:
        assert "\n" not in self.texts[-1]
        line: dict[str, Any] = json.loads(self.texts[-1])
        return line


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler = Lines()
    log.addHandler(handler)
    log.setLevel(logging.DEBUG)
    log.propagate = False
    yield handler
    log.removeHandler(handler)


log = logging.getLogger("tests.logs")


def test_a_line_has_the_fields_of_cloud_logging(lines: Lines) -> None:
    log.warning("claimed %s of %d", "record", 3, extra={"count": 3})
    line = lines.last
    assert line.pop("time").endswith("+00:00")
    assert line == {"severity": "WARNING", "message": "claimed record of 3", "logger": "tests.logs", "count": 3}


def test_every_line_carries_what_is_bound(lines: Lines) -> None:
    with bind(operation_id="o-1", step="record", dispatch=3, tenant=None, traceparent=TRACE):
        with bind(step="render", attempt=2):
            log.info("inside")
        inner = lines.last
        log.info("outside")
    outer = lines.last
    log.info("after")
    assert inner[LABELS] == {"operation_id": "o-1", "step": "render", "dispatch": "3", "attempt": "2"}
    assert inner["logging.googleapis.com/trace"] == "projects/my-project/traces/4bf92f3577b34da6a3ce929d0e0e4736"
    assert inner["logging.googleapis.com/spanId"] == "00f067aa0ba902b7"
    assert outer[LABELS] == {"operation_id": "o-1", "step": "record", "dispatch": "3"}
    assert LABELS not in lines.last
    assert bound() == {}


def test_what_is_bound_ends_with_an_error_and_stays_in_its_thread(lines: Lines) -> None:
    with bind(step="record"):
        thread = threading.Thread(target=log.info, args=("elsewhere",))
        thread.start()
        thread.join()
        assert LABELS not in lines.last
    with pytest.raises(ValueError), bind(step="record"):
        fail(ValueError())
    assert bound() == {}


def test_what_is_bound_can_be_taken_to_another_thread(lines: Lines) -> None:
    def elsewhere(labels: dict[str, str]) -> None:
        with bind(**labels):
            log.info("elsewhere")

    with bind(step="record"):
        thread = threading.Thread(target=elsewhere, args=(bound(),))
        thread.start()
        thread.join()
    assert lines.last[LABELS] == {"step": "record"}


def fail(error: Exception, cause: Exception | None = None) -> None:
    raise error from cause


def test_case_49_a_foreign_exception_is_its_class_and_frames(lines: Lines) -> None:
    try:
        fail(ValueError(f"Key (email)=({CANARY}) already exists"), KeyError(CANARY))
    except ValueError:
        log.exception("the step failed")
    assert CANARY not in lines.texts[-1]
    line = lines.last
    assert line["severity"] == "ERROR"
    assert line["exception"][0] == "builtins.ValueError"
    assert line["exception"][-1] == "builtins.KeyError"
    assert any(frame.startswith("  unit/test_logs.py:") and " in fail" in frame for frame in line["exception"])


def test_case_49_our_own_error_keeps_its_text_and_its_cause_only_its_class(lines: Lines) -> None:
    try:
        fail(UnavailableError("the queue is away"), OSError(CANARY))
    except UnavailableError:
        log.exception("later")
    assert CANARY not in lines.texts[-1]
    assert lines.last["exception"][0] == "shared.errors.UnavailableError: the queue is away"


@pytest.mark.parametrize(
    "write",
    [
        lambda error: log.error("failed: %s", error),
        lambda error: log.error("failed: %r of %s", error, "record"),
        lambda error: log.error(error),
        lambda error: log.error("failed", extra={"error": error}),
        lambda error: log.error("failed", exc_info=error),
        lambda error: log.error("failed", stack_info=True, exc_info=error),
    ],
)
def test_case_49_an_exception_logged_in_another_way_keeps_its_text_out(lines: Lines, write: Any) -> None:
    write(ValueError(CANARY))
    assert CANARY not in lines.texts[-1]
    assert "ValueError" in lines.texts[-1]


def test_our_own_error_as_an_argument_is_text(lines: Lines) -> None:
    log.error("failed: %s", PermanentError("no such customer"))
    assert lines.last["message"] == "failed: no such customer"


def test_case_9_a_line_is_storable_and_bounded(lines: Lines) -> None:
    with bind(step="a\0b\ud800" + "x" * 1000):
        # Not through a logger: pytest keeps what is logged, and pytest-xdist cannot send a lone surrogate.
        text = "x\0y\ud800z\x1b" + "!" * 20_000
        lines.emit(logging.LogRecord("a", logging.INFO, __file__, 1, text, None, None))
    assert len(lines.last["message"]) == 8000
    assert lines.last["message"].startswith("xyz!")
    assert lines.last[LABELS]["step"].startswith("abx")
    assert len(lines.last[LABELS]["step"]) == 200


def test_a_chain_and_its_frames_are_bounded() -> None:
    def deep(left: int) -> None:
        if left:
            deep(left - 1)
        raise ValueError

    error: Exception = ValueError()
    for _ in range(10):
        try:
            fail(RuntimeError(), error)
        except RuntimeError as caught:
            error = caught
    assert len([line for line in describe(error) if not line.startswith(" ")]) == 5
    with pytest.raises(ValueError) as caught_deep:
        deep(100)
    assert len(describe(caught_deep.value)) == 21


def test_a_loop_of_causes_ends() -> None:
    one, other = ValueError(), ValueError()
    one.__cause__, other.__cause__ = other, one
    assert len(describe(one)) == 5


SCRIPT = """
import logging, threading
from shared import logs
logs.setup(); logs.setup()
logging.getLogger("a").info("first")
logging.getLogger("a").debug("hidden")
logging.getLogger("a").info("%d", "c4nary")
def die(): raise ValueError("c4nary")
thread = threading.Thread(target=die, name="relay"); thread.start(); thread.join()
die()
"""


def test_case_49_set_up_writes_each_line_once_and_catches_what_ends_a_thread_or_the_process() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        env={"GOOGLE_CLOUD_PROJECT": "my-project"},
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr == ""
    assert CANARY not in ended.stdout
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [(line["severity"], line["message"]) for line in lines] == [
        ("INFO", "first"),
        ("ERROR", "a log line was lost at <string>:7"),
        ("CRITICAL", "thread relay ends"),
        ("CRITICAL", "the process ends"),
    ]
    assert lines[-1]["exception"][0] == "builtins.ValueError"


def test_set_up_writes_to_where_standard_output_is_now(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logs._StandardOutput(sys.__stdout__)
    handler.setFormatter(CloudFormatter())
    record = logging.LogRecord("a", logging.INFO, __file__, 1, "now", None, None)
    handler.handle(record)
    assert json.loads(capsys.readouterr().out)["message"] == "now"


LAZY = """
import sys
import shared.config, shared.envelope, shared.identity, shared.logs, shared.pipeline, shared.retry, shared.tokens
loaded = [name for name in ("google.auth", "requests", "cryptography", "pg8000") if name in sys.modules]
assert not loaded, loaded
"""


def test_the_foundations_do_not_load_heavy_libraries() -> None:
    subprocess.run([sys.executable, "-c", LAZY], cwd=ROOT, check=True, timeout=60)
