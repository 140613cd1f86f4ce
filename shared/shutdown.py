"""The end of an instance: SIGTERM stops new work, gives the running handlers a grace, then hands their steps back.

functions-framework loads a function in gunicorn's master, which forks the process that serves; gunicorn ends that
process on SIGTERM by itself, but tells nobody. So a handler of ours goes before gunicorn's, in that process alone,
and calls it when no step is held any more (docs/decisions/0010).
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Protocol

from shared.errors import EchoproofError

GRACE = timedelta(seconds=8)  # Cloud Run kills ten seconds after SIGTERM; handing back takes milliseconds
LOOK_EVERY = 0.02  # seconds between looks whether gunicorn has set its handler; it does within milliseconds of the fork
LAST_ANSWERS = 0.5  # seconds for answers that are being written

log = logging.getLogger(__name__)


class Held(Protocol):
    """What is under way in this instance and can be given to another one."""

    @property
    def settling(self) -> bool:
        """Whether it is about to end: giving it back would wait for that."""
        ...

    def hand_back(self) -> None:
        """Give it back; may raise EchoproofError."""
        ...


class Shutdown:
    """Whether this instance is being shut down, and what it still has in hand."""

    def __init__(self, grace: timedelta = GRACE) -> None:
        self.stopping = False
        self._grace = grace.total_seconds()
        self._running: list[Held] = []
        self._changed = threading.Condition()
        self._told: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._over = False
        self._master = 0
        self._inherited: Any = None
        self._next: Any = None

    @contextmanager
    def running(self, held: Held) -> Iterator[None]:
        """Count something as under way for the length of the block."""
        with self._changed:
            self._running.append(held)
        try:
            yield
        finally:
            with self._changed:
                self._running.remove(held)
                self._changed.notify_all()

    def watch(self) -> None:
        """Go before the server's handler of SIGTERM in the process that it forks to serve."""
        self._master = os.getpid()
        os.register_at_fork(after_in_child=self._forked)

    def end(self) -> bool:
        """Wait until nothing is under way, for the grace at most, hand back what still is, and say whether any was."""
        until = time.monotonic() + self._grace
        with self._changed:
            while self._running and (left := until - time.monotonic()) > 0:
                self._changed.wait(left)
            late = sorted(self._running, key=lambda held: held.settling)
        for held in late:
            try:
                held.hand_back()
            except EchoproofError as error:  # its lease runs out, and reconcile finds it
                log.warning("not handed back: %s", error)
        return bool(late)

    def _forked(self) -> None:
        self._inherited = signal.getsignal(signal.SIGTERM)
        if os.getppid() != self._master or not callable(self._inherited):
            return  # some other child, or a server that does not handle SIGTERM
        threading.Thread(target=self._finish, name="shutdown", daemon=True).start()
        # The server sets its own handler after this, and only this thread may set one: so look until it has.
        signal.signal(signal.SIGALRM, self._look)
        signal.setitimer(signal.ITIMER_REAL, LOOK_EVERY, LOOK_EVERY)

    def _look(self, *_: object) -> None:
        current = signal.getsignal(signal.SIGTERM)
        if not callable(current) or current == self._inherited:
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        self._next = current
        signal.signal(signal.SIGTERM, self._terminated)
        signal.siginterrupt(signal.SIGTERM, False)  # noqa: FBT003 - as gunicorn does: no system call is disturbed

    def _terminated(self, number: int, frame: Any) -> None:
        if self._over:
            self._next(number, frame)
        elif not self.stopping:
            self.stopping = True
            self._told.put(None)  # a lock could be held by what this handler has interrupted

    def _finish(self) -> None:
        self._told.get()
        log.info("shutting down")
        late = self.end()
        self._over = True
        main = threading.main_thread().ident
        if main is not None:
            signal.pthread_kill(main, signal.SIGTERM)
        if late:  # their handlers hold nothing any more; gunicorn would wait for them, up to thirty seconds
            time.sleep(LAST_ANSWERS)
            os._exit(0)
