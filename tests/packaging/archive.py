"""A function's archive by the rule of infra/modules/source/main.tf, and the environment that is built from it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "infra" / "requirements.txt"
RULE = ROOT / "infra" / "modules" / "source" / "main.tf"
CACHES = re.compile(r"(__pycache__|\.pyc$)")
WITH = {"console": ("migrations",)}  # its container runs the migrations too
AWAY = re.compile(r"NewConnectionError|ConnectTimeoutError|NameResolutionError|No matching distribution", re.IGNORECASE)


def functions() -> list[str]:
    """Every function, by its folder."""
    return sorted(path.parent.name for path in (ROOT / "functions").glob("*/main.py"))


def files(function: str) -> dict[str, Path]:
    """What is in a function's archive: name in it, file that it is made from."""
    found = _below(ROOT / "shared", "shared/") | _below(ROOT / "functions" / function, "")
    for folder in WITH.get(function, ()):
        found |= _below(ROOT / folder, f"{folder}/")
    return found | {"pipeline.yaml": ROOT / "pipeline.yaml", "requirements.txt": REQUIREMENTS}


def _below(folder: Path, prefix: str) -> dict[str, Path]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not CACHES.search(str(path.relative_to(folder)))]
    return {prefix + path.relative_to(folder).as_posix(): path for path in paths}


def make(function: str, folder: Path) -> Path:
    """Write the archive as Terraform does: each file read as text."""
    path = folder / f"{function}.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, source in sorted(files(function).items()):
            archive.writestr(name, source.read_text(encoding="utf-8"))
    return path


def unpack(function: str, folder: Path) -> Path:
    """Make the archive and unpack it as the build does; returns the folder."""
    target = folder / function
    with zipfile.ZipFile(make(function, folder)) as archive:
        archive.extractall(target)
    return target


def environment(folder: Path) -> Path:
    """Make a virtual environment with what a deployed function has, and return its Python.

    Skips when pip cannot reach a registry; on CI that is a failure.
    """
    python = folder / "bin" / "python"
    _run([sys.executable, "-m", "venv", str(folder)])
    options = ["--require-hashes", "--no-compile", "--disable-pip-version-check", "--retries", "1"]
    command = [str(python), "-m", "pip", "install", *options, "-r", str(REQUIREMENTS)]
    installed = _run(command, fail=False)
    if installed.returncode and AWAY.search(installed.stdout + installed.stderr):
        pytest.skip("pip reaches no registry: the functions' environment cannot be made")
    assert installed.returncode == 0, installed.stderr
    return python


def _run(command: Sequence[str], *, fail: bool = True) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=600, check=fail)
