"""Recovery mode from the container of the migration job, whose user owns the schema (docs/restore.md).

`python -m shared.recovery_job begin` or `end`, with the database settings of every function.
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence

from shared import logs, recovery
from shared.config import DatabaseSettings, load
from shared.database import Database
from shared.errors import EchoproofError
from shared.migrate_job import as_owner
from shared.wiring import connect_function

log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Turn recovery mode on or off; 0 when it is as asked, 2 for a wrong call."""
    logs.setup()
    if list(arguments) not in (["begin"], ["end"]):
        log.error("say begin or end")
        return 2
    try:
        (settings,) = load(DatabaseSettings)
        with contextlib.closing(Database(as_owner(connect_function(settings)), size=1)) as database:
            if arguments[0] == "begin":
                log.info("recovery is on", extra={"effects_to_look_up": recovery.begin(database)})
            else:
                log.info("recovery is off", extra={"was_on": recovery.end(database)})
    except (EchoproofError, OSError):
        log.exception("recovery mode was not changed")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
