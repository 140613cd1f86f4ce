"""The heartbeat: extends an attempt's lease while its handler runs."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta
from typing import Self

from shared import steps
from shared.database import Database
from shared.errors import EchoproofError, LeaseLostError
from shared.step_context import StepContext

MARGIN = timedelta(seconds=20)  # past its timeout a handler has this long to settle before its lease may end

log = logging.getLogger(__name__)


class Heartbeat:
    """Extends the lease every third of its length; a context manager around the handler.

    It pauses while the settling transaction is open, whose row lock it would wait for, tells the context of a
    cancel, and marks it lost when the fence no longer holds. A beat that fails is repeated at the next turn.
    """

    def __init__(self, database: Database, claim: steps.Claim, context: StepContext) -> None:
        self._database = database
        self._claim = claim
        self._context = context
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def _run(self) -> None:
        interval = self._claim.policy.lease.total_seconds() / 3
        while not self._stopped.wait(interval):
            if self._context.settling is None and not self._beat():
                return

    def _beat(self) -> bool:
        try:
            self._context.cancelled = steps.extend(self._database, self._claim, MARGIN)
        except LeaseLostError:
            self._context.lost = True
            return False
        except EchoproofError as error:
            log.warning("heartbeat failed, tried again: %s", error)
        return True
