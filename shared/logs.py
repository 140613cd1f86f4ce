"""Structured logs: one JSON object a line on standard output, as Cloud Logging reads them.

Every line carries what `bind` holds: the ids of the operation and step, and the trace. An exception is logged as
its class and frames; its text only when it is one of ours, because a driver's or a library's may quote a row, an
input or a credential (CASES 49).
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import PurePath
from types import TracebackType
from typing import Any, TextIO

from pythonjsonlogger.json import JsonFormatter

from shared.errors import EchoproofError, sanitise

_FRAMES = 20  # of each exception in a chain: the innermost, where it happened
_CHAIN = 5  # exceptions of one chain
_MESSAGE = 8000  # characters; Cloud Logging takes 256 kB a line
_TRACE = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")

_bound: ContextVar[dict[str, str] | None] = ContextVar("echoproof_log_labels", default=None)


@contextlib.contextmanager
def bind(**labels: object) -> Iterator[None]:
    """Add labels to every line that is logged inside, in this thread or task; a None adds nothing.

    `traceparent` becomes the line's trace and span rather than a label. Nested bindings add up.
    """
    added = {name: sanitise(str(value), 200) for name, value in labels.items() if value is not None}
    token = _bound.set({**(_bound.get() or {}), **added})
    try:
        yield
    finally:
        _bound.reset(token)


def bound() -> dict[str, str]:
    """Return a copy of what is bound here, to bind it again in another thread."""
    return dict(_bound.get() or {})


def setup(level: int = logging.INFO) -> None:
    """Send every log line, and what ends a thread or the process, to standard output; may be called again."""
    root = logging.getLogger()
    root.setLevel(level)
    if any(isinstance(handler, _StandardOutput) for handler in root.handlers):
        return
    handler = _StandardOutput(sys.stdout)
    handler.setFormatter(CloudFormatter(os.environ.get("GOOGLE_CLOUD_PROJECT", "")))
    root.handlers[:] = [handler]
    sys.excepthook = _log_uncaught
    threading.excepthook = _log_thread_end


class CloudFormatter(JsonFormatter):
    """Writes a record as Cloud Logging's structured fields; `project` completes the name of a trace."""

    def __init__(self, project: str = "") -> None:
        super().__init__()
        self._project = project

    def add_fields(self, log_data: dict[str, Any], record: logging.LogRecord, message_dict: dict[str, Any]) -> None:
        """Fill the line's fields; extra ones are those that the caller passed as `extra`."""
        super().add_fields(log_data, record, {})
        log_data.update(
            severity=record.levelname if record.levelno else "DEFAULT",
            message=_message(record, message_dict),
            time=datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            logger=record.name,
        )
        labels = dict(_bound.get() or {})
        if trace := _TRACE.fullmatch(labels.pop("traceparent", "")):
            name = f"projects/{self._project}/traces/{trace[1]}" if self._project else trace[1]
            log_data |= {"logging.googleapis.com/trace": name, "logging.googleapis.com/spanId": trace[2]}
        if labels:
            log_data["logging.googleapis.com/labels"] = labels
        if record.exc_info and record.exc_info[1]:
            log_data["exception"] = describe(record.exc_info[1])

    def formatException(  # noqa: N802 - logging's name
        self,
        ei: tuple[type[BaseException], BaseException, TracebackType | None] | tuple[None, None, None],
    ) -> str:
        """Return the class alone: the usual text ends with the exception's own, which may not be logged."""
        return ei[0].__qualname__ if ei[0] else ""

    def process_log_record(self, log_data: dict[str, Any]) -> dict[str, Any]:
        """Keep the text of a foreign exception out of the extra fields, too."""
        return {name: type(v).__qualname__ if _foreign(v) else v for name, v in log_data.items()}


def describe(error: BaseException) -> list[str]:
    """Tell an exception and what caused it: class, our own text, and frames, outermost first; no values."""
    lines: list[str] = []
    for link in _chain(error):
        text = f": {sanitise(str(link))}" if isinstance(link, EchoproofError) else ""
        lines.append(f"{type(link).__module__}.{type(link).__qualname__}{text}")
        frames = traceback.extract_tb(link.__traceback__)[-_FRAMES:]
        lines += [f"  {_place(frame.filename)}:{frame.lineno} in {frame.name}" for frame in frames]
    return lines


def _chain(error: BaseException) -> list[BaseException]:
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and len(links) < _CHAIN:
        links.append(link)
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return links


def _place(filename: str) -> str:
    """Shorten a file's name to its folder and itself: where it is installed says nothing."""
    return "/".join(PurePath(filename).parts[-2:])


def _message(record: logging.LogRecord, message_dict: dict[str, Any]) -> str:
    """Return the text, in which an exception that was passed as an argument is only its class."""
    arguments = record.args
    if isinstance(arguments, tuple) and any(_foreign(argument) for argument in arguments):
        arguments = tuple(type(a).__qualname__ if _foreign(a) else a for a in arguments)
        return sanitise(str(record.msg) % arguments, _MESSAGE)
    if _foreign(record.msg):
        return type(record.msg).__qualname__
    return sanitise(record.message or str(message_dict.get("message", "")), _MESSAGE)


def _foreign(value: object) -> bool:
    return isinstance(value, BaseException) and not isinstance(value, EchoproofError)


class _StandardOutput(logging.StreamHandler[TextIO]):
    """Writes to whatever sys.stdout is at the time, so that it can be redirected after set-up."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream = sys.stdout
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Say that a line was lost, and where it came from; the usual way prints the arguments."""
        with contextlib.suppress(OSError, ValueError):
            place = f"{_place(record.pathname)}:{record.lineno}"
            sys.stdout.write(f'{{"severity": "ERROR", "message": "a log line was lost at {place}"}}\n')


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger(__name__).critical("the process ends", exc_info=(kind, error, trace))


def _log_thread_end(ended: threading.ExceptHookArgs) -> None:
    if ended.exc_value is not None and not issubclass(ended.exc_type, SystemExit):
        where = ended.thread.name if ended.thread else "unknown"
        logging.getLogger(__name__).critical("thread %s ends", where, exc_info=ended.exc_value)
