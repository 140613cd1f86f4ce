"""Which role needs which query, what it may do by the catalog, and what docs/database-roles.md says of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from shared import queries
from tests.database.kit import Kit

DOCUMENT = Path(__file__).parents[2] / "docs" / "database-roles.md"
HANDS_OVER = frozenset({"return_rows"})
ADMITS = frozenset({"may_admit", "lock_admission", "lock_free_keys", "admit_operations"}) | HANDS_OVER
EXPLAINS = frozenset({"explain_claim", "record_message"})
EFFECTS = frozenset(name for name in (query.name for query in queries.parse(
    (Path(queries.__file__).parent / "effects.sql").read_text()
)) if name not in ("queue_lookups", "effects_pulse", "begin_recovery", "end_recovery"))  # fmt: skip
# What each function runs, by the module that runs it.
NEEDS: Mapping[str, frozenset[str]] = {
    "intake": ADMITS | {"accept_operation", "find_identity", "read_operation", "list_operations", "lock_steps",
        "cancel_operation", "drop_outbox_of_stopped_steps"},
    "every_step": ADMITS | EXPLAINS | EFFECTS | {"claim_step", "refuse_step", "take_probe", "extend_lease", "hold_step",
        "settle_succeeded", "settle_failed", "read_back_settle", "count_provider_failure", "close_circuit",
        "take_turn"},
    "relay": HANDS_OVER | {"lease_due_rows", "refuse_row", "outbox_pulse", "make_progress_rows", "lease_probes"},
    "reconcile": ADMITS | {"move_expired_leases", "end_undelivered", "admit_overdue_operations", "end_overdue_steps",
        "queue_lookups", "queue_startable_steps", "list_waiting_tenants", "prune_operations", "prune_identities",
        "effects_pulse", "count_open_dead_letters"},
    "dead_letter": EXPLAINS | {"find_step_owner", "record_step_dead_letter"},
    "invoice_announce": frozenset(),
    "invoice_collect": frozenset({"invoice_of_operation"}),
    "invoice_notify": frozenset({"invoice_of_operation", "artifacts_of_operation", "record_notification"}),
    "invoice_record": frozenset({"record_invoice"}),
    "invoice_render": frozenset({"invoice_of_operation", "lines_of_invoice", "record_artifacts"}),
    "report_generate": frozenset({"invoices_of_account", "record_artifacts"}),
    "report_notify": frozenset({"artifacts_of_operation", "record_notification"}),
}  # fmt: skip
# Run by whoever owns the schema: the migration job, recovery after a restore, the proof of the demonstration.
OWNERS = frozenset({"begin_recovery", "end_recovery", "applied_migrations", "record_migration"})


def of_files(*names: str) -> frozenset[str]:
    """The queries that stand in these files."""
    folder = Path(queries.__file__).parent
    return frozenset(query.name for name in names for query in queries.parse((folder / f"{name}.sql").read_text()))


def needs() -> dict[str, frozenset[str]]:
    """Every role with the queries that it must be able to run; the console's are those of its files."""
    console = of_files("pulse", "review", "review_reading", "pauses") - {"make_progress_rows"}
    return {**NEEDS, "console": console | {"effects_pulse", "list_circuits", "applied_migrations"}}


FOUND = """
    WITH relations AS (
        SELECT c.oid, c.relname, p.privilege, p.by_column,
            has_table_privilege('echoproof_{role}', c.oid, p.privilege) AS whole
        FROM pg_class c
        CROSS JOIN (VALUES ('SELECT', true), ('INSERT', true), ('UPDATE', true), ('DELETE', false), ('TRUNCATE', false),
            ('REFERENCES', true), ('TRIGGER', false), ('MAINTAIN', false)) p (privilege, by_column)
        WHERE c.relnamespace = 'public'::regnamespace AND c.relkind NOT IN ('S', 'i', 'c', 't')
    )
    SELECT relname, privilege, '' FROM relations WHERE whole
    UNION ALL
    SELECT r.relname, r.privilege, string_agg(a.attname, ', ' ORDER BY a.attnum)
    FROM relations r
    JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
    WHERE NOT r.whole AND r.by_column AND has_column_privilege('echoproof_{role}', r.oid, a.attnum, r.privilege)
    GROUP BY r.relname, r.privilege
    UNION ALL
    SELECT c.relname, p, '' FROM pg_class c CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) p
    WHERE c.relnamespace = 'public'::regnamespace AND c.relkind = 'S'
        AND CASE WHEN c.relkind = 'S' THEN has_sequence_privilege('echoproof_{role}', c.oid, p) END
    UNION ALL
    SELECT p.proname || '()', 'EXECUTE', '' FROM pg_proc p
    WHERE p.pronamespace = 'public'::regnamespace AND p.proacl IS NOT NULL
        AND has_function_privilege('echoproof_{role}', p.oid, 'EXECUTE')
"""
ORDER = ("SELECT", "INSERT", "UPDATE", "DELETE", "USAGE", "EXECUTE", "TRUNCATE", "REFERENCES", "TRIGGER", "MAINTAIN")
Rights = dict[str, dict[str, str]]  # object → privilege → its columns, or nothing for all of them


def rights_of(kit: Kit, role: str) -> Rights:
    """What a role may do, by the catalog; a privilege on some columns with their names."""
    rights: Rights = {}
    for name, privilege, columns in kit.query(FOUND.format(role=role)):
        rights.setdefault(name, {})[privilege] = columns
    return rights


def documented() -> dict[str, Rights]:
    """The tables of the document: one a role, under its heading."""
    found: dict[str, Rights] = {}
    role = ""
    for line in DOCUMENT.read_text().splitlines():
        if heading := re.fullmatch(r"### `echoproof_(\w+)`.*", line):
            role = heading[1]
            found[role] = {}
        elif role and (row := re.fullmatch(r"\| `([\w()]+)` \| (.+) \|", line)):
            found[role][row[1]] = {
                right[1]: right[2] or "" for right in re.finditer(r"([A-Z]+)(?: \(([^)]*)\))?", row[2])
            }
    return found


def written(rights: Rights) -> str:
    """The rows of a role's table in the document."""
    lines = []
    for name, privileges in sorted(rights.items()):
        cells = [
            f"{privilege} ({privileges[privilege]})" if privileges[privilege] else privilege
            for privilege in ORDER
            if privilege in privileges
        ]
        lines.append(f"| `{name}` | {', '.join(cells)} |")
    return "\n".join(lines)
