"""The operator's commands, on a real database: what they print, what they change, and how they exit."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from typer.testing import CliRunner, Result

from local.cli import app
from local.operating import surroundings
from shared import steps
from shared.review import pulse
from tests.database.kit import Kit

WHY = ["--reason", "the bank is back", "--actor", "ada@example.com"]


@pytest.fixture
def run(kit: Kit, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a command as a shell would, on the test's database and pipeline."""
    monkeypatch.setenv("DATABASE_URL", kit.url)
    monkeypatch.setenv("PIPELINE_FILE", str(tmp_path / "pipeline.yaml"))
    monkeypatch.setattr(surroundings.out, "_width", 300)  # COLUMNS is not asked where standard output is none

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run


def resting(kit: Kit, outcome: steps.Outcome = steps.Outcome.UNRESOLVED) -> UUID:
    operation_id, held = kit.start()
    kit.fail(held, outcome)
    return operation_id


def letter_of(kit: Kit, operation_id: UUID) -> str:
    return str(kit.value(f"SELECT id FROM dead_letters WHERE operation_id = '{operation_id}'"))


def test_the_queue_is_listed_shown_and_paged(kit: Kit, run: Any) -> None:
    operations = [resting(kit) for _ in range(3)]
    listed = run("dead-letters", "list", "--limit", "2")
    assert listed.exit_code == 0
    assert "needs a decision" in listed.output
    page = json.loads(run("dead-letters", "list", "--limit", "2", "--json").output)
    assert [letter["operation_id"] for letter in page["dead_letters"]] == [str(operations[2]), str(operations[1])]
    rest = json.loads(run("dead-letters", "list", "--cursor", page["cursor"], "--json").output)
    assert [letter["operation_id"] for letter in rest["dead_letters"]] == [str(operations[0])]
    shown = run("dead-letters", "show", letter_of(kit, operations[0]))
    assert "attempt 1: unresolved" in shown.output
    assert json.loads(run("operations", "show", operations[0], "--json").output)["state"] == "needs_review"


def test_a_list_of_nothing_says_whether_it_was_filtered(run: Any) -> None:
    assert "nothing needs a person" in run("dead-letters", "list").output
    assert "no such letter" in run("dead-letters", "list", "--cause", "exhausted").output
    assert run("dead-letters", "list", "--cause", "exausted").exit_code == 2


def test_a_replay_is_shown_dry_and_done_with_a_reason_and_twice_is_refused(kit: Kit, run: Any) -> None:
    operation_id = resting(kit)
    letter = letter_of(kit, operation_id)
    dry = run("dead-letters", "replay", letter, "--dry-run")
    assert dry.exit_code == 0
    assert "test.single/only is unresolved, generation 1" in dry.output
    assert kit.states(operation_id) == {"only": "unresolved"}
    assert run("dead-letters", "replay", letter, "--yes").exit_code == 2  # no reason
    assert kit.states(operation_id) == {"only": "unresolved"}
    unasked = run("dead-letters", "replay", letter, *WHY)
    assert unasked.exit_code == 2  # not a terminal
    done = run("dead-letters", "replay", letter, *WHY, "--yes")
    assert (done.exit_code, kit.states(operation_id)) == (0, {"only": "queued"})
    again = run("dead-letters", "replay", letter, *WHY, "--yes", "--json")
    assert again.exit_code == 1
    assert json.loads(again.output) == [{"item": letter, "error": "the step is queued"}]
    assert kit.query("SELECT actor, reason FROM reviews") == [["ada@example.com", "the bank is back"]]


def test_a_bulk_replay_reports_each_and_exits_with_one_when_some_could_not(kit: Kit, run: Any) -> None:
    operations = [resting(kit) for _ in range(3)]
    done, held = kit.start()
    steps.succeed(kit.database, held, None)
    items = [letter_of(kit, operation) for operation in operations]
    ran = run("dead-letters", "replay", *items, f"{done}/only", str(uuid4()), *WHY, "--yes", "--json")
    assert ran.exit_code == 1
    errors = [item["error"] for item in json.loads(ran.output)]
    assert errors == [None, None, None, "the step is succeeded", "there is no such dead letter"]


def test_a_failed_step_without_a_letter_is_named_by_its_operation(kit: Kit, run: Any) -> None:
    operation_id = resting(kit, steps.Outcome.FAILED)
    assert run("dead-letters", "replay", f"{operation_id}/only", *WHY, "--yes").exit_code == 0
    assert kit.states(operation_id) == {"only": "queued"}


def test_a_bulk_discard_with_something_that_is_no_id_gives_nothing_up(kit: Kit, run: Any) -> None:
    operation_id = resting(kit)
    refused = run("dead-letters", "discard", f"{operation_id}/only", "nonsense", "--yes", *WHY)
    assert refused.exit_code == 2
    assert "nonsense is not an id" in refused.output
    assert kit.states(operation_id) == {"only": "unresolved"}


def test_a_step_is_resolved_discarded_and_noted(kit: Kit, run: Any) -> None:
    first, second = resting(kit), resting(kit)
    letter = letter_of(kit, first)
    assert run("dead-letters", "note", letter, "asked the bank", "--actor", "ada").exit_code == 0
    resolved = run("dead-letters", "resolve", letter, "--evidence", "on the statement", "--result", '{"paid": 7}')
    assert (resolved.exit_code, kit.operation_state(first)) == (0, "succeeded")
    assert kit.value(f"SELECT result FROM steps WHERE operation_id = '{first}'") == {"paid": 7}
    assert run("dead-letters", "resolve", letter, "--evidence", "x", "--result", "[]").exit_code == 2
    lonely = ["--answer", 'payment={"amount": 7}']
    assert run("dead-letters", "resolve", letter, "--evidence", "x", *lonely).exit_code == 2
    assert run("dead-letters", "discard", letter_of(kit, second), *WHY, "--yes").exit_code == 0
    assert kit.operation_state(second) == "failed"


def test_operations_are_found_by_key_and_state_and_cancelled(kit: Kit, run: Any) -> None:
    accepted = kit.accept(key="order-7")
    found = json.loads(run("operations", "list", "--key", "order-7", "--json").output)["operations"]
    assert [(row["id"], row["state"]) for row in found] == [(str(accepted.operation_id), "requested")]
    assert run("operations", "list", "--state", "nonsense").exit_code == 2
    assert "cancelled" in run("operations", "cancel", accepted.operation_id).output
    assert kit.operation_state(accepted.operation_id) == "cancelled"
    assert "order-7" in run("operations", "list", "--state", "cancelled").output


def test_the_pulse_is_shown(kit: Kit, run: Any) -> None:
    resting(kit)
    kit.accept()
    taken = json.loads(run("stats", "--json").output)
    assert (taken["in_flight"], taken["needs_review"]) == (1, 1)
    (only,) = [step for step in taken["steps"] if step["type"] == "test.single"]
    assert only["due"] == 1
    assert len(taken["steps"]) == len(kit.pipeline.steps)
    assert pulse.take(kit.database, kit.pipeline).outcomes == {"unresolved": 1}
    text = run("stats").output
    assert "1 in flight, 0 wait, 1 need a review" in text
    assert "dead letters: 1 unresolved" in text
    assert "test.single" in run("outbox").output


def test_pausing_and_resuming(kit: Kit, run: Any) -> None:
    assert run("pause", "step", "test.single/only", *WHY).exit_code == 0
    assert "step test.single/only, by ada@example.com" in run("pauses").output
    unknown = run("pause", "provider", "tills", *WHY)
    assert unknown.exit_code == 1
    assert "till" in str(unknown.exception)
    assert run("resume", "step", "test.single/only").exit_code == 0
    assert "nothing is paused" in run("pauses").output


def test_hostile_text_is_printed_as_it_is_and_starts_nothing(kit: Kit, run: Any) -> None:
    operation_id, held = kit.start()
    steps.fail(kit.database, held, steps.Outcome.UNRESOLVED, "TestError", "[red]\x1b[31m<script>", timedelta(0))
    assert "[red][31m<script>" in run("operations", "show", operation_id).output
    assert "\x1b[31m" not in run("dead-letters", "list").output


@pytest.mark.parametrize("command", [["dead-letters", "show", "7"], ["operations", "show", "x"]])
def test_what_is_no_id_is_said(run: Any, command: list[str]) -> None:
    ran = run(*command)
    assert ran.exit_code == 2
    assert "is not an id" in ran.output
