"""Everything that happened to one operation, in order of time: what `reading.operation` returns, as events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any


@dataclass(frozen=True)
class Event:
    """One thing that happened; `seconds` is how long it took, None for a moment. `step` is None for the operation."""

    at: datetime
    kind: str
    step: str | None
    text: str
    detail: str = ""
    seconds: float | None = None


def events(found: dict[str, Any]) -> list[Event]:
    """Return the events of an operation, oldest first; what is still under way comes with its start."""
    told = [*_operation(found)]
    told += [_attempt(attempt) for attempt in found["attempts"]]
    told += [event for step in found["steps"] for event in _under_way(step)]
    told += [event for effect in found["effects"] for event in _effect(effect)]
    told += [_outbox(row) for row in found["outbox"]]
    told += [event for letter in found["dead_letters"] for event in _letter(letter)]
    told += [_action(action) for action in found["reviews"]]
    return sorted(told, key=lambda event: event.at)


def time_of(text: str | datetime) -> datetime:
    """Read a time as PostgreSQL writes it into JSON; a datetime is returned as it is."""
    return text if isinstance(text, datetime) else datetime.fromisoformat(text)


def _operation(found: dict[str, Any]) -> Iterator[Event]:
    yield Event(found["accepted_at"], "operation", None, "accepted")
    if found["cancel_requested_at"]:
        yield Event(found["cancel_requested_at"], "operation", None, "cancel asked for")
    if found["finished_at"]:
        took = (found["finished_at"] - found["accepted_at"]).total_seconds()
        yield Event(found["finished_at"], "operation", None, found["state"], seconds=took)


def _attempt(attempt: dict[str, Any]) -> Event:
    started, ended = time_of(attempt["started_at"]), time_of(attempt["ended_at"])
    text = f"attempt {attempt['attempt']}: {attempt['outcome']}"
    return Event(started, "attempt", attempt["step"], text, _error(attempt), (ended - started).total_seconds())


def _under_way(step: dict[str, Any]) -> Iterator[Event]:
    if step["state"] == "running":
        text = f"attempt {step['attempt']}: running, lease until {step['lease_expires_at']}"
        yield Event(time_of(step["attempt_started_at"]), "attempt", step["step"], text)


def _effect(effect: dict[str, Any]) -> Iterator[Event]:
    name = f"{effect['name']} at {effect['provider']}"
    if effect["generation"] > 1:
        name += f", generation {effect['generation']}"
    yield Event(time_of(effect["intended_at"]), "effect", effect["step"], f"{name}: intended")
    if effect["unknown_since"]:
        detail = f"{effect['reason'] or ''} (sends {effect['permits']}, lookups {effect['lookups']})".strip()
        yield Event(time_of(effect["unknown_since"]), "effect", effect["step"], f"{name}: unknown", detail)
    if effect["confirmed_at"]:
        detail = f"{effect['reference'] or ''}, by {effect['evidence']}".strip(", ")
        yield Event(time_of(effect["confirmed_at"]), "effect", effect["step"], f"{name}: confirmed", detail)


def _outbox(row: dict[str, Any]) -> Event:
    detail = f"due {row['available_at']}, published by the relay {row['published']} times"
    return Event(time_of(row["created_at"]), "message", row["step"], f"dispatch {row['dispatch']} is unclaimed", detail)


def _letter(letter: dict[str, Any]) -> Iterator[Event]:
    again = f", {letter['occurrences']} times" if letter["occurrences"] > 1 else ""
    yield Event(
        time_of(letter["opened_at"]), "dead letter", letter["step"], f"{letter['cause']}{again}", _error(letter)
    )
    if letter["closed_at"]:
        yield Event(
            time_of(letter["closed_at"]), "dead letter", letter["step"], "closed", letter["closed_reason"] or ""
        )


def _action(action: dict[str, Any]) -> Event:
    text = " ".join(filter(None, [action["action"], action["mode"]])) + f" by {action['actor']}"
    return Event(time_of(action["at"]), "review", action["step"], text, action["reason"])


def _error(row: dict[str, Any]) -> str:
    return ": ".join(filter(None, [row["error_kind"], row["error"]]))
