"""The state machine: every pair of states, legal and illegal, in the table and in the database."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from shared.database_errors import ConstraintError
from shared.transitions import ALIVE, IN_REVIEW, TRANSITIONS, UNFINISHED, State
from tests.database.kit import Kit

PAIRS = [(a, b) for a, b in itertools.product(State, State) if a != b]
FIELDS = {  # what the CHECKs want of a step in each state
    State.WAITING: "needs_left = needs_left, lease_expires_at = NULL, finished_at = NULL",
    State.QUEUED: "available_at = now(), dispatch = greatest(dispatch, 1), finished_at = NULL, result = NULL, "
    "lease_expires_at = NULL",
    State.RUNNING: "lease_expires_at = now(), attempt_started_at = now(), attempt = attempt + 1, fence = fence + 1, "
    "finished_at = NULL, result = NULL",
    State.SUCCEEDED: "finished_at = now(), lease_expires_at = NULL",
    State.FAILED: "finished_at = now(), lease_expires_at = NULL, error_kind = 'x', result = NULL",
    State.UNRESOLVED: "finished_at = now(), lease_expires_at = NULL, error_kind = 'x', result = NULL",
    State.EXHAUSTED: "finished_at = now(), lease_expires_at = NULL, error_kind = 'x', result = NULL",
    State.CANCELLED: "finished_at = now(), lease_expires_at = NULL, result = NULL",
    State.DISCARDED: "finished_at = now(), lease_expires_at = NULL, result = NULL",
}
PATHS = {  # a legal way to each state
    State.WAITING: [],
    State.QUEUED: [State.QUEUED],
    State.RUNNING: [State.QUEUED, State.RUNNING],
    State.SUCCEEDED: [State.QUEUED, State.RUNNING, State.SUCCEEDED],
    State.FAILED: [State.QUEUED, State.RUNNING, State.FAILED],
    State.UNRESOLVED: [State.QUEUED, State.RUNNING, State.UNRESOLVED],
    State.EXHAUSTED: [State.QUEUED, State.RUNNING, State.EXHAUSTED],
    State.CANCELLED: [State.CANCELLED],
    State.DISCARDED: [State.QUEUED, State.RUNNING, State.FAILED, State.DISCARDED],
}
OPERATION = "00000000-0000-7000-8000-000000000001"


def move(kit: Kit, state: State) -> None:
    kit.query(f"UPDATE steps SET state = '{state}', {FIELDS[state]} WHERE operation_id = '{OPERATION}'")


def bring_to(kit: Kit, state: State) -> None:
    kit.query("DELETE FROM operations")
    kit.query("DELETE FROM dead_letters")
    kit.query(
        "INSERT INTO operations (id, tenant, type, key, input, steps_left, steps_alive) "
        f"VALUES ('{OPERATION}', 't', 'y', 'k', '{{}}', 1, 0)"
    )
    kit.query(f"INSERT INTO steps (operation_id, step, state, needs_left) VALUES ('{OPERATION}', 's', 'waiting', 0)")
    for on_the_way in PATHS[state]:
        move(kit, on_the_way)


def test_every_pair_of_states_is_allowed_exactly_when_the_table_has_it(kit: Kit) -> None:
    wrong = []
    for before, after in PAIRS:
        bring_to(kit, before)
        legal = (before, after) in TRANSITIONS
        try:
            move(kit, after)
        except ConstraintError as error:
            if legal or error.constraint != "steps_legal_edge":
                wrong.append((before, after, str(error)))
        else:
            if not legal:
                wrong.append((before, after, "the database took it"))
    assert wrong == []


def test_the_database_function_holds_the_same_edges(kit: Kit) -> None:
    found = {(a, b) for a, b in PAIRS if kit.value(f"SELECT step_edge_is_legal('{a}', '{b}')")}
    assert found == set(TRANSITIONS)


def test_the_database_knows_the_same_actors_of_each_edge(kit: Kit) -> None:
    rows = kit.query(
        "SELECT a.state, b.state, step_edge_actors(a.state, b.state) "
        f"FROM unnest(ARRAY{[s.value for s in State]}) a (state), unnest(ARRAY{[s.value for s in State]}) b (state)"
    )
    found = {(State(a), State(b)): set(actors) for a, b, actors in rows if actors is not None}
    assert found == {edge: {actor.value for actor in actors} for edge, actors in TRANSITIONS.items()}


def test_the_counts_and_the_operations_state_follow_from_the_step(kit: Kit) -> None:
    expected = {
        State.WAITING: ("requested", 1, 0, 0, 0, 0),
        State.QUEUED: ("requested", 1, 1, 0, 0, 0),
        State.RUNNING: ("running", 1, 1, 0, 0, 0),
        State.SUCCEEDED: ("succeeded", 0, 0, 0, 0, 0),
        State.FAILED: ("failed", 1, 0, 0, 1, 0),
        State.UNRESOLVED: ("needs_review", 1, 0, 1, 0, 0),
        State.EXHAUSTED: ("needs_review", 1, 0, 1, 0, 0),
        State.CANCELLED: ("cancelled", 1, 0, 0, 0, 1),
        State.DISCARDED: ("failed", 1, 0, 0, 1, 0),
    }
    for state in State:
        bring_to(kit, state)
        row = kit.query(
            "SELECT state, steps_left, steps_alive, steps_in_review, steps_failed, steps_cancelled FROM operations"
        )[0]
        assert tuple(row) == expected[state], state


def test_a_step_that_needs_a_person_has_an_open_review_row_and_success_closes_it(kit: Kit) -> None:
    for state in IN_REVIEW:
        bring_to(kit, state)
        assert kit.query("SELECT cause, state FROM dead_letters") == [[state.value, "open"]]
        move(kit, State.SUCCEEDED)
        assert kit.query("SELECT state, closed_reason FROM dead_letters") == [["closed", "step succeeded"]]


@pytest.mark.parametrize("column", ["attempt", "dispatch", "fence", "generation"])
def test_a_counter_never_falls(kit: Kit, column: str) -> None:
    bring_to(kit, State.RUNNING)
    kit.query(f"UPDATE steps SET {column} = 5")
    with pytest.raises(ConstraintError, match="steps_legal_edge"):
        kit.query(f"UPDATE steps SET {column} = 4")


@pytest.mark.parametrize(
    ("state", "broken"),
    [
        (State.RUNNING, "lease_expires_at = NULL"),
        (State.QUEUED, "lease_expires_at = now()"),
        (State.QUEUED, "available_at = NULL"),
        (State.QUEUED, "needs_left = 0, finished_at = now()"),
        (State.SUCCEEDED, "finished_at = NULL"),
        (State.FAILED, "error_kind = NULL"),
        (State.FAILED, "result = '{}'"),
    ],
)
def test_a_state_without_its_timestamps_is_refused(kit: Kit, state: State, broken: str) -> None:
    bring_to(kit, state)
    with pytest.raises(ConstraintError):
        kit.query(f"UPDATE steps SET {broken}")


def test_every_table_and_column_has_a_comment(kit: Kit) -> None:
    missing = kit.query(
        """
        SELECT c.relname, a.attname FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum >= 0 AND NOT a.attisdropped
        WHERE c.relkind = 'r' AND c.relname <> 'schema_migrations' AND a.attnum > 0
            AND col_description(c.oid, a.attnum) IS NULL
        UNION ALL
        SELECT c.relname, NULL FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'public'
        WHERE c.relkind = 'r' AND c.relname <> 'schema_migrations' AND obj_description(c.oid, 'pg_class') IS NULL
        """
    )
    assert missing == []


def test_the_diagram_in_the_documentation_has_the_same_edges() -> None:
    text = (Path(__file__).parents[2] / "docs" / "states.md").read_text()
    drawn = {(a, b) for a, b in re.findall(r"^\s*(\w+) --> (\w+)(?:\s*:.*)?$", text, re.MULTILINE)}
    assert {(State(a), State(b)) for a, b in drawn} == set(TRANSITIONS)
    assert UNFINISHED > ALIVE
