"""Every case that the pipeline must survive has a test that is named after it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
# docs/cases.md names them by family; those that come with later work are not listed there.
CASES = [*range(1, 25), *range(27, 43), *range(47, 63)]
ACCEPTANCE = range(1, 10)


def names() -> set[str]:
    text = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    return set(re.findall(r"def test_((?:\w*_)?(?:case_|a)\d+)_", text)) | set(re.findall(r"(case_\d+|a\d+)_", text))


def test_every_case_has_a_test() -> None:
    found = names()
    missing = [f"case_{number}" for number in CASES if f"case_{number}" not in found]
    missing += [f"a{number}" for number in ACCEPTANCE if f"a{number}" not in found]
    assert missing == []


def test_the_list_of_cases_names_files_that_exist() -> None:
    text = (ROOT / "docs" / "cases.md").read_text()
    folder = Path()
    for name in re.findall(r"`((?:tests/[\w/.]+)|test_\w+\.py)`", text):
        path = ROOT / name if name.startswith("tests/") else folder / name
        assert path.exists(), name
        folder = path.parent if path.suffix else path
