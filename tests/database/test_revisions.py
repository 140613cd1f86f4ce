"""Two revisions sweep at once while PostgreSQL crashes in the middle of it: nothing is stranded."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from local.postgres import Postgres, temporary
from shared import reconcile
from shared.database import Connection, Database, connector
from shared.errors import EchoproofError
from shared.migrate import migrate
from shared.outbox import Outbox
from shared.pipeline import Pipeline
from shared.relay import run_once as relay_once
from tests.database.kit import PIPELINE, Kit
from tests.database.line import Noting

ADDED = """
  test.added:
    steps:
      only: {function: test_added}
"""
STEPS = 400
CRASHES = 3
BATCH = 5  # so that a sweep is many statements


@pytest.fixture
def server() -> Iterator[Postgres]:
    server, folder = temporary(fsync="off")
    with server:
        migrate(connector(server.url))
        yield server
    shutil.rmtree(folder, ignore_errors=True)


def revision(folder: Path, text: str) -> Pipeline:
    folder.mkdir()
    path = folder / "pipeline.yaml"
    path.write_text(text)
    return Pipeline.load(path)


def test_case_41_two_revisions_overlap_and_postgresql_crashes_in_the_middle_of_their_sweeps(
    server: Postgres, tmp_path: Path
) -> None:
    old = revision(tmp_path / "old", PIPELINE)
    new = revision(
        tmp_path / "new",
        PIPELINE.replace("attempts: 3", "attempts: 4")
        + "  test.added:\n    steps:\n      only: {function: test_added}\n",
    )
    database = Database(connector(server.url), size=4)
    kit = Kit(database, old, server.url)
    for number in range(STEPS):
        kit.start(("test.single", "test.line", "test.fan", "test.twin")[number % 4])
    kit.expire_leases()
    kit.close()
    over = threading.Event()

    def sweep(pipeline: Pipeline) -> None:
        """One instance of reconcile and relay of a revision, called again and again."""
        own = Database(connector(server.url), size=2)
        outbox = Outbox(own, pipeline, Noting([]))
        while not over.is_set():
            with contextlib.suppress(EchoproofError):
                reconcile.run_once(outbox, pipeline, batch=BATCH)
                relay_once(outbox)
        own.close()

    sweeps = [threading.Thread(target=sweep, args=(pipeline,)) for pipeline in (old, new, old, new)]
    for one in sweeps:
        one.start()
    moved, seen = 0, list[int]()
    for crash in range(CRASHES):
        wanted = STEPS * (crash + 1) // (CRASHES + 2)
        watching = Connection(connector(server.url)())
        while moved < wanted:
            moved = watching.raw.run("SELECT count(*) FROM attempts")[0][0]
        watching.close()
        seen.append(moved)
        server.stop(signal.SIGQUIT)
        server.start()
    kit = Kit(database, old, server.url)
    while kit.value("SELECT count(*) FROM steps WHERE state = 'running'"):
        over.wait(0.05)
    over.set()
    for one in sweeps:
        one.join()
    assert seen[0] < STEPS  # in the middle
    assert kit.query("SELECT outcome, count(*), max(attempt) FROM attempts GROUP BY outcome") == [
        ["abandoned", STEPS, 1]
    ]
    assert kit.value("SELECT count(*) FROM steps WHERE state = 'queued' AND dispatch = 2") == STEPS
    kit.check_invariant()
    kit.close()
    database.close()
