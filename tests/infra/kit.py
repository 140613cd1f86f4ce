"""Terraform on a copy of the repository, with the offline stand-ins of its providers: nothing leaves this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
STAND_INS = ROOT.parent / "shared" / "terraform-offline"
PATIENCE = 200.0  # seconds for one command on a busy machine; a plan takes three
LIMITS = {  # characters of a name, by type: Google's
    "google_cloud_scheduler_job": 500,
    "google_cloud_tasks_queue": 100,
    "google_cloudfunctions2_function": 49,
    "google_cloud_run_v2_service": 49,
    "google_pubsub_subscription": 255,
    "google_pubsub_topic": 255,
    "google_service_account": 30,
    "google_sql_user": 63,
    "google_storage_bucket": 63,
}


def missing() -> str:
    """What this machine lacks to run these tests, or nothing."""
    if shutil.which("terraform") is None:
        return "terraform is not installed"
    return "" if (STAND_INS / "setup.sh").is_file() else "no offline providers beside the repository"


class Deployment:
    """A copy of what an apply reads, in a folder of its own, and Terraform in it.

    Of `shared/` it has a few files only: every archive holds all of them, and Terraform's time goes into these.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.infra = self.root / "infra"
        self._providers = folder / "providers"
        self._env = os.environ | {"TF_IN_AUTOMATION": "1", "TF_CLI_ARGS": "-no-color", "CHECKPOINT_DISABLE": "1"}
        copy_repository(self.root)
        subprocess.run(
            [STAND_INS / "setup.sh", self._providers],
            env=self._env | {"PYTHON": sys.executable},
            check=True,
            capture_output=True,
            timeout=PATIENCE,
        )
        self.run("init")

    def run(self, *arguments: str, codes: Sequence[int] = (0,)) -> str:
        """Run Terraform and return what it printed; fails unless it ended with one of these codes."""
        command = [str(self._providers / "tf-fast"), "terraform", *arguments]
        done = subprocess.run(
            command, cwd=self.infra, env=self._env, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert done.returncode in codes, done.stdout[-3000:] + done.stderr[-5000:]
        return done.stdout + done.stderr

    def plan(self, sizes: str = "production", **variables: str) -> dict[str, Any]:
        """Plan with one of the tfvars and further variables, and return Terraform's own JSON of it."""
        given = [f"-var={name}={value}" for name, value in variables.items()]
        self.run("plan", f"-var-file=envs/{sizes}.tfvars", "-out=plan.bin", *given)
        shown: dict[str, Any] = json.loads(self.run("show", "-json", "plan.bin"))
        return shown

    def apply(self) -> dict[str, Any]:
        """Apply the production sizes with the stand-ins and return the JSON of the state."""
        self.run("apply", "-auto-approve", "-var-file=envs/production.tfvars")
        shown: dict[str, Any] = json.loads(self.run("show", "-json"))
        return shown


def copy_repository(to: Path) -> None:
    """Copy what an apply reads, with a small shared/ that has something in it which no archive may have."""
    ignore = shutil.ignore_patterns("__pycache__", ".terraform*", ".build", "*.tfstate*", "requirements.txt")
    for name in ("functions", "infra", "migrations"):
        shutil.copytree(ROOT / name, to / name, ignore=ignore)
    shutil.copy(ROOT / "pipeline.yaml", to)
    (to / "infra" / "requirements.txt").write_text("# the pinned packages\n")
    caches = to / "shared" / "review" / "__pycache__"
    caches.mkdir(parents=True)
    (caches / "plan.cpython-311.pyc").write_bytes(b"\xff\xfe")
    for name in ("errors.py", "review/plan.py", "queries/pulse.sql"):
        (to / "shared" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "shared" / name, to / "shared" / name)


def planned(plan: dict[str, Any]) -> set[str]:
    """The address of every resource that a plan makes."""
    return {change["address"] for change in plan["resource_changes"] if "create" in change["change"]["actions"]}


def resources(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Every resource of a state or of planned values, those of modules included."""
    values = state.get("planned_values") or state["values"]
    return list(_walk(values["root_module"]))


def _walk(module: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (resource for resource in module.get("resources", []) if resource["mode"] == "managed")
    for child in module.get("child_modules", []):
        yield from _walk(child)


def need_terraform() -> None:
    """Skip the tests of a module with one line when this machine cannot run them."""
    if lack := missing():
        pytest.skip(f"{lack}: the deployment is not tested", allow_module_level=True)
