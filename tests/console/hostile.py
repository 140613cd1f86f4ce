"""An operation whose every text was written by somebody who wishes us ill."""

from __future__ import annotations

import json

from tests.console.shop import Shop

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'><svg onload=alert(3)>{{7*7}}${7*7}"
TURNED = "invoice\u202efdp.exe\u2066\u200b\ufeff"
LONG = "<b>" + "wide" * 25_000
NUL = r"\u0000 and \ud800 and \\u0000"
EVIL = f"{SCRIPT} {TURNED} {NUL}"


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def plant(shop: Shop) -> tuple[str, str]:
    """Put hostile text into every field that a page shows; return the operation and a letter of none."""
    operation_id = shop.incompatible()
    evil, long, turned = quoted(EVIL), quoted(LONG), quoted(TURNED + SCRIPT)
    given = quoted('{"n": ' + json.dumps(SCRIPT + TURNED) + r', "nul": "\u0000\ud800", ' + json.dumps(EVIL) + ": 1}")
    for statement in (
        f"UPDATE operations SET key = left({evil}, 255), ordering_key = {evil} WHERE id = '{operation_id}'",
        f"UPDATE operations SET input = {given} WHERE id = '{operation_id}'",
        f"UPDATE steps SET error_kind = {evil}, error = {long} WHERE operation_id = '{operation_id}'",
        f"UPDATE attempts SET error_kind = {evil}, error = {long} WHERE operation_id = '{operation_id}'",
        f"UPDATE dead_letters SET error_kind = {evil}, error = {long} WHERE operation_id = '{operation_id}'",
        f"""INSERT INTO effects (operation_id, step, name, provider, state, provider_key, request, reference, reason,
            evidence, unknown_since) VALUES ('{operation_id}', 'only', left({turned}, 100), {evil}, 'unknown',
            '{operation_id}', '', {evil}, {long}, {evil}, now())""",
        f"""INSERT INTO reviews (actor, action, reason, operation_id, step, before, after)
            VALUES (left({evil}, 500), 'note', left({long}, 2000), '{operation_id}', {evil}, '{{}}', '{{}}')""",
        f"INSERT INTO pauses (kind, name, actor, reason) VALUES ('tenant', {evil}, {evil}, {long})",
    ):
        shop.query(statement)
    letter = shop.value(
        f"""INSERT INTO dead_letters (digest, cause, error_kind, error, raw, subscription, message_id)
            VALUES (sha256(uuidv7()::text::bytea), 'malformed', {evil}, {long}, {long}, {evil}, {evil}) RETURNING id"""
    )
    return str(operation_id), str(letter)


def clean(shop: Shop) -> None:
    """Take away what the other tests would see."""
    shop.query("DELETE FROM pauses")
