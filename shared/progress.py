"""How far each topic has been consumed: noted by claims, read by the relay, which does not repeat a backlog."""

from __future__ import annotations

from shared.database import Database
from shared.pipeline import Pipeline


def prepare(database: Database, pipeline: Pipeline) -> None:
    """Make the row of each step that has none; claims move it on, at most once a second."""
    steps = pipeline.steps
    database.run(
        "make_progress_rows", operation_types=[step.type for step in steps], steps=[step.name for step in steps]
    )
