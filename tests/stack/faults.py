"""Where the functions of the whole-stack tests die: SIGKILL to themselves, at the point that an operation's key names.

`claimed-…`: after the claim, before the handler's work. `handled-…`: after the handler, before the settle.
`committed-…`: after the settle's commit, before the next step is published. `answered-…`: after all of it, before the
HTTP answer. `stalled-…`: not dead, but at a standstill until the test says. Always in the first attempt only.
"""

from __future__ import annotations

import io
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from werkzeug.wrappers import Request, Response

from shared.outbox import Outbox
from shared.publisher import Dispatch
from shared.wiring import HttpFunction

FLAGS = "STACK_TEST_FLAGS"  # the folder through which a test and the functions speak
STALL = 60.0  # seconds that a stalled handler waits at most
_current = threading.local()


def flag(name: str) -> Path:
    """Return the path of a flag: it is up when the file exists."""
    return Path(os.environ[FLAGS]) / name


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def meet(ctx: Any, place: str) -> None:
    """Do here, in a step's first run, what the key says: `kill.<place>-…`, `term.<place>-…`, `deaf.<place>-…`.

    kill: SIGKILL. term: SIGTERM to this process, and go on as soon as the handler can see it. deaf: the same, and take
    no notice of it. Places after the handler are met by `function`.
    """
    what, _, where = ctx.key.partition("-")[0].partition(".")
    if not ctx.first_run:
        return
    _current.point = f"{what}.{where}"
    if where != place:
        return
    _current.point = ""
    _strike(what)
    until = time.monotonic() + STALL
    while what == "term" and not ctx.stopping and time.monotonic() < until:
        time.sleep(0.01)
    if what == "deaf":
        wait_for(flag(f"go-{ctx.key}"))


def _strike(what: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGTERM)


def handler(work: Callable[[Any], dict[str, Any] | None]) -> Callable[[Any], dict[str, Any] | None]:
    """Return the handler, which dies before or after its work when the operation's key says so."""

    def run(ctx: Any) -> dict[str, Any] | None:
        point = ctx.key.partition("-")[0] if ctx.attempt == 1 else ""
        if point == "claimed":
            die()
        if point == "stalled":
            wait_for(flag(f"go-{ctx.key}"))
        result = work(ctx)
        if point == "handled":
            die()
        _current.point = point
        return result

    return run


def function(main: HttpFunction) -> HttpFunction:
    """Return the function, which writes down each message and dies after the commit when the key said so."""
    publish_at_once = Outbox.publish_at_once

    def publish(self: Outbox, dispatches: Sequence[Dispatch]) -> None:
        if getattr(_current, "point", "") == "committed":
            die()
        if getattr(_current, "point", "").endswith(".committed"):
            _strike(_current.point.partition(".")[0])
        publish_at_once(self, dispatches)

    Outbox.publish_at_once = publish  # type: ignore[method-assign]

    def answer(request: Request) -> Response:
        _current.point = ""
        with flag("messages").open("ab") as messages:
            body = request.get_data()
            messages.write(body.replace(b"\n", b" ") + b"\n")
        response = main(Request({**request.environ, "wsgi.input": io.BytesIO(body)}))
        if _current.point == "answered":
            die()
        if _current.point.endswith(".answered"):
            _strike(_current.point.partition(".")[0])
        return response

    return answer


def wait_for(path: Path) -> None:
    until = time.monotonic() + STALL
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.02)
