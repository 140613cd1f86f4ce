"""The configuration reads well: variables in order, typed and described; versions pinned; no secret in a file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

INFRA = Path(__file__).resolve().parents[2] / "infra"
BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}$', re.MULTILINE | re.DOTALL)
FILES = sorted(path for path in INFRA.rglob("*.tf") if ".terraform" not in path.parts)


def names(path: Path, kind: str) -> list[str]:
    return [name for block, name, _ in BLOCK.findall(path.read_text()) if block == kind]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(INFRA)))
def test_variables_and_outputs_are_in_order_and_described(path: Path) -> None:
    for kind in ("variable", "output"):
        assert names(path, kind) == sorted(names(path, kind))
    for kind, name, body in BLOCK.findall(path.read_text()):
        description = re.search(r'^  description = "(.+)"$', body, re.MULTILINE)
        assert description, f"{kind} {name} has no description"
        assert description[1].endswith(".")
        assert kind == "output" or re.search(r"^  type +=", body, re.MULTILINE), f"{name} has no type"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(INFRA)))
def test_files_are_short_and_say_what_they_are(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= 260
    named = path.name in {"variables.tf", "outputs.tf", "versions.tf"}
    assert named or text.startswith("# "), "begin with a line that says what is in the file"


def test_no_random_names_and_no_secret_values() -> None:
    text = "".join(path.read_text() for path in FILES)
    assert 'resource "random_' not in text
    assert "google_secret_manager_secret_version" not in text, "values would be in the state"


def test_providers_are_pinned() -> None:
    versions = (INFRA / "versions.tf").read_text()
    assert versions.count('">= 7.42, < 8.0"') == 2
    assert re.search(r'required_version = ">= 1\.11', versions)


def test_every_check_that_is_skipped_says_why() -> None:
    for path in FILES:
        for skipped in re.findall(r"checkov:skip=(\S+?)(?::(.*))?$", path.read_text(), re.MULTILINE):
            assert len(skipped[1]) > 8, f"{path.name}: {skipped[0]} is skipped without a reason"
