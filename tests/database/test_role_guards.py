"""What each role is refused, tried for real: others' edges, others' tables, decisions without an audit."""

from __future__ import annotations

import pytest

from shared.database_errors import ConstraintError, QueryError
from shared.errors import EchoproofError
from shared.migrate_job import FORBIDDEN
from shared.transitions import TRANSITIONS, Actor, State
from tests.database.kit import Kit
from tests.database.test_roles import acting_as
from tests.database.test_states import FIELDS, OPERATION, bring_to

ACTORS = {  # docs/database-roles.md
    "console": {Actor.REVIEW},
    "dead_letter": set(),
    "every_step": {Actor.CLAIM, Actor.SETTLE},
    "intake": {Actor.ADMIT, Actor.CANCEL},
    "reconcile": {Actor.ADMIT, Actor.RECONCILE},
    "relay": {Actor.RELAY},
}
STEP = f"operation_id = '{OPERATION}'"
SETTLE = "UPDATE steps SET state = 'succeeded', finished_at = now()"
CLAIM = "UPDATE steps SET state = 'running'"
QUEUE = "UPDATE steps SET state = 'queued', available_at = now(), dispatch = dispatch + 1, finished_at = NULL"
INVOICE = "INSERT INTO invoices (operation_id, tenant) VALUES (gen_random_uuid(), 'shop')"
REVIEW = (
    "INSERT INTO reviews (actor, action, mode, reason, operation_id, step, before, after) "
    f"VALUES ('eva', 'replay', 'resume', 'for a test', '{OPERATION}', 's', '{{}}', '{{}}')"
)
# role, state of the step, statement that is refused
FORBIDDEN_ACTIONS = [
    ("intake", State.RUNNING, SETTLE),
    ("intake", State.RUNNING, "UPDATE steps SET result = '{}'"),
    ("intake", State.QUEUED, CLAIM),
    ("intake", State.EXHAUSTED, QUEUE),
    ("intake", State.QUEUED, "UPDATE operations SET state = 'succeeded'"),
    ("intake", State.QUEUED, "DELETE FROM identities"),
    ("intake", State.QUEUED, "DELETE FROM operations"),
    ("intake", State.QUEUED, "INSERT INTO attempts (step) VALUES ('s')"),
    ("intake", State.QUEUED, "SELECT request FROM effects"),
    ("intake", State.QUEUED, "SELECT 1 FROM invoices"),
    ("invoice_render", State.QUEUED, INVOICE),
    ("invoice_render", State.QUEUED, "UPDATE invoice_counters SET last_number = 1"),
    ("invoice_collect", State.QUEUED, "SELECT 1 FROM invoice_lines"),
    ("invoice_collect", State.QUEUED, "INSERT INTO notifications (step) VALUES ('s')"),
    ("invoice_record", State.QUEUED, "UPDATE invoices SET total_pence = 1"),
    ("invoice_record", State.QUEUED, "DELETE FROM invoices"),
    ("invoice_notify", State.QUEUED, "UPDATE artifacts SET sha256 = ''"),
    ("report_generate", State.QUEUED, INVOICE),
    ("report_notify", State.QUEUED, "SELECT 1 FROM invoices"),
    ("every_step", State.QUEUED, "SELECT 1 FROM artifacts"),
    ("every_step", State.EXHAUSTED, QUEUE),
    ("every_step", State.EXHAUSTED, SETTLE),
    ("every_step", State.FAILED, "UPDATE steps SET state = 'discarded'"),
    ("every_step", State.QUEUED, "UPDATE steps SET generation = generation + 1"),
    ("every_step", State.RUNNING, "UPDATE operations SET state = 'succeeded', finished_at = now()"),
    ("every_step", State.EXHAUSTED, "UPDATE dead_letters SET state = 'closed', closed_at = now()"),
    ("every_step", State.QUEUED, "UPDATE effects SET provider_key = 'another'"),
    ("every_step", State.QUEUED, "DELETE FROM effects"),
    ("every_step", State.QUEUED, "UPDATE attempts SET outcome = 'succeeded'"),
    ("every_step", State.QUEUED, "DELETE FROM pauses"),
    ("every_step", State.QUEUED, "UPDATE recovery SET ended_at = now()"),
    ("relay", State.QUEUED, CLAIM),
    ("relay", State.QUEUED, "UPDATE steps SET attempt = attempt + 1"),
    ("relay", State.RUNNING, SETTLE),
    ("relay", State.QUEUED, "UPDATE steps SET state = 'cancelled', finished_at = now()"),
    ("relay", State.QUEUED, "INSERT INTO outbox (step) VALUES ('s')"),
    ("relay", State.QUEUED, "SELECT input FROM operations"),
    ("reconcile", State.QUEUED, CLAIM),
    ("reconcile", State.RUNNING, SETTLE),
    ("reconcile", State.EXHAUSTED, QUEUE),
    ("reconcile", State.QUEUED, "UPDATE steps SET fence = fence + 1"),
    ("reconcile", State.QUEUED, "DELETE FROM invoices"),
    ("reconcile", State.QUEUED, "DELETE FROM reviews"),
    ("reconcile", State.QUEUED, "UPDATE effects SET state = 'confirmed'"),
    ("dead_letter", State.WAITING, QUEUE),
    ("dead_letter", State.QUEUED, "SELECT 1 FROM steps FOR UPDATE"),
    ("dead_letter", State.QUEUED, "INSERT INTO outbox (step) VALUES ('s')"),
    ("dead_letter", State.EXHAUSTED, "UPDATE dead_letters SET state = 'closed', closed_at = now()"),
    ("dead_letter", State.QUEUED, "SELECT input FROM operations"),
    ("console", State.QUEUED, CLAIM),
    ("console", State.RUNNING, SETTLE),
    ("console", State.QUEUED, "UPDATE steps SET state = 'cancelled', finished_at = now()"),
    ("console", State.QUEUED, "UPDATE steps SET fence = fence + 1"),
    ("console", State.QUEUED, "UPDATE operations SET input = '{}'"),
    ("console", State.QUEUED, "DELETE FROM outbox"),
    ("console", State.QUEUED, "UPDATE reviews SET reason = 'another'"),
    ("console", State.QUEUED, "DELETE FROM reviews"),
    ("console", State.QUEUED, REVIEW.replace("(actor", "(at, actor").replace("('eva'", "(now(), 'eva'")),
    ("console", State.QUEUED, "SELECT 1 FROM invoices"),
    ("console", State.QUEUED, "INSERT INTO schema_migrations (number, name, checksum) VALUES (99, 'x', 'x')"),
]
ANYBODY = [
    "DROP TABLE steps",
    "TRUNCATE steps",
    "ALTER TABLE steps DISABLE TRIGGER ALL",
    "ALTER FUNCTION steps_moved() RESET ALL",
    "CREATE TABLE more (id int)",
    "DELETE FROM schema_migrations",
    "UPDATE schema_migrations SET checksum = ''",
    "SET session_replication_role = replica",
    "SELECT make_role('echoproof_more')",
    "SELECT give_role(current_user::text, 'echoproof_console')",
    "GRANT echoproof_console TO current_user",
]


@pytest.mark.parametrize("role", sorted(ACTORS))
def test_a_role_moves_a_step_along_its_actors_edges_alone(kit: Kit, role: str) -> None:
    wrong = []
    kit.query(f"GRANT SELECT, UPDATE ON steps TO echoproof_{role}")  # so that the guard alone decides
    for (before, after), actors in TRANSITIONS.items():
        bring_to(kit, before)
        landed = True
        try:
            with acting_as(kit, role):
                kit.query(f"UPDATE steps SET state = '{after}', {FIELDS[after]} WHERE {STEP}")
        except QueryError as error:
            if error.sqlstate != FORBIDDEN:
                raise
            landed = False
        if landed != bool(actors & ACTORS[role]):
            wrong.append((before, after, landed))
    assert wrong == []


@pytest.mark.parametrize("role", sorted({role for role, _, _ in FORBIDDEN_ACTIONS}))
def test_a_forbidden_action_is_refused(kit: Kit, role: str) -> None:
    for _, state, sql in (action for action in FORBIDDEN_ACTIONS if action[0] == role):
        bring_to(kit, state)
        with pytest.raises(QueryError, match=FORBIDDEN), acting_as(kit, role):
            kit.query(sql)


def test_nobody_touches_the_schema_its_history_or_the_roles(kit: Kit) -> None:
    for role in (*ACTORS, "invoice_record"):
        for sql in ANYBODY:
            with pytest.raises(QueryError, match=FORBIDDEN), acting_as(kit, role):
                kit.query(sql)


def test_intake_cannot_accept_a_step_that_is_past_its_claim(kit: Kit) -> None:
    kit.query(
        "INSERT INTO operations (id, tenant, type, key, input, steps_left, steps_alive) "
        f"VALUES ('{OPERATION}', 't', 'y', 'k', '{{}}', 1, 0)"
    )
    for state in set(State) - {State.WAITING, State.QUEUED}:
        with pytest.raises(ConstraintError), acting_as(kit, "intake"):
            kit.query(
                "INSERT INTO steps (operation_id, step, needs, needs_left, state, dispatch, available_at) "
                f"VALUES ('{OPERATION}', 's', '{{}}', 0, '{state}', 1, now())"
            )


def test_a_decision_lands_with_its_audit_row_in_the_same_transaction_alone(kit: Kit) -> None:
    bring_to(kit, State.EXHAUSTED)
    with pytest.raises(QueryError, match=FORBIDDEN):
        decide(kit, f"{QUEUE} WHERE {STEP}")
    assert kit.value("SELECT state FROM steps") == "exhausted"
    decide(kit, REVIEW)  # of another decision, earlier
    with pytest.raises(QueryError, match=FORBIDDEN):
        decide(kit, f"{QUEUE} WHERE {STEP}")
    decide(kit, f"{QUEUE} WHERE {STEP}", REVIEW)
    assert kit.value("SELECT state FROM steps") == "queued"


def test_reconcile_looks_up_again_without_an_audit_row(kit: Kit) -> None:
    bring_to(kit, State.UNRESOLVED)
    decide(kit, f"{QUEUE} WHERE {STEP}", role="reconcile")
    assert kit.value("SELECT state FROM steps") == "queued"


def test_what_follows_from_a_move_needs_no_right_of_its_mover(kit: Kit) -> None:
    bring_to(kit, State.RUNNING)
    exhausted = "state = 'exhausted', finished_at = now(), lease_expires_at = NULL, error_kind = 'x'"
    decide(kit, f"UPDATE steps SET {exhausted} WHERE {STEP}", role="every_step")
    assert kit.query("SELECT state, steps_in_review FROM operations") == [["needs_review", 1]]
    assert kit.query("SELECT state FROM dead_letters") == [["open"]]
    with acting_as(kit, "dead_letter"):
        assert kit.query(f"SELECT * FROM lock_step('{OPERATION}', 's')") == [["exhausted", 1]]


def decide(kit: Kit, *statements: str, role: str = "console") -> None:
    """Run statements as a role and commit; raises what the commit does."""
    kit.query("BEGIN")
    try:
        kit.query(f"SET LOCAL ROLE echoproof_{role}")
        for sql in statements:
            kit.query(sql)
        kit.query("COMMIT")
    except EchoproofError:
        kit.query("ROLLBACK")
        raise
