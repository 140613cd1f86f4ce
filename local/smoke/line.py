"""The line itself: one operation end to end, one that is due later, and the clock of relay and reconcile."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from local.client import Client
from local.smoke.target import TIMEOUT, Target
from local.smoke.verdict import Verdict, failed, guarded, judged, not_checked

DELAY = 15.0  # seconds until the delayed operation is due: within the relay's horizon, so Cloud Tasks has it
LATE = 30.0  # seconds after that; the relay's tick alone would need up to a minute and the writer's minute
RECENT = timedelta(minutes=3)  # a tick comes every minute and takes 45 seconds at most
TICKS = {"relay": "relay tick", "reconcile": "reconcile sweep"}
SCHEDULER = "https://cloudscheduler.googleapis.com/v1/projects/{project}/locations/{region}/jobs/{name}"


def end_to_end(target: Target, tenant: str, body: Mapping[str, Any], patience: float) -> Verdict:
    """Submit one operation, wait for its end, submit it again: one operation, one result."""
    check = "one operation end to end"

    def look() -> Verdict:
        client, key = Client(target.intake, tenant, target.intake_token), f"smoke-{uuid.uuid4()}"
        first = client.submit(dict(body), key)
        found = client.wait(first.operation_id, patience)
        again = client.submit(dict(body), key)
        wrong = (
            [f"{first.operation_id} is {found['state']}: {_trouble(found)}"] if found["state"] != "succeeded" else []
        )
        wrong += ["the same request again made another"] if again.operation_id != first.operation_id else []
        return judged(check, wrong, f"{first.operation_id} succeeded, and the same again is the same")

    return guarded(check, look)


def delayed(target: Target, tenant: str, body: Mapping[str, Any], patience: float) -> Verdict:
    """Submit one operation that is due a little later: Cloud Tasks starts it on time, never before."""
    check = "Cloud Tasks"

    def look() -> Verdict:
        client = Client(target.intake, tenant, target.intake_token)
        due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=DELAY)
        submitted = client.submit({**body, "not_before": due.isoformat()}, f"smoke-{uuid.uuid4()}")
        found = client.wait(submitted.operation_id, DELAY + patience)
        starts = [step["attempt_started_at"] for step in found["steps"] if step.get("attempt_started_at")]
        if not starts:
            return failed(check, f"{submitted.operation_id} has not started: {found['state']}")
        late = (datetime.fromisoformat(min(starts)) - due).total_seconds()
        wrong = ["it started before it was due"] if late < 0 else []
        wrong += [f"it started {late:.0f} s late: is the queue there, and may intake enqueue?"] if late > LATE else []
        return judged(check, wrong, f"what was due in {DELAY:.0f} s started {max(late, 0):.1f} s after that")

    return guarded(check, look)


def scheduler(target: Target, name: str) -> Verdict:
    """Relay or reconcile was called lately, and answered."""
    check = f"Cloud Scheduler calls {name}"
    if target.local:
        return guarded(check, lambda: _from_log(check, target.data / f"{name}.log", TICKS[name]))
    return guarded(check, lambda: _from_job(check, target, name))


def _from_log(check: str, log: Path, message: str) -> Verdict:
    """Read the last tick in the log of the function that runs on this machine."""
    lines = (
        [line for line in log.read_text(errors="replace").splitlines() if f'"{message}"' in line]
        if log.is_file()
        else []
    )
    if not lines:
        return failed(check, f"no `{message}` in {log.name}")
    return _judge(check, json.loads(lines[-1])["time"], [])


def _from_job(check: str, target: Target, name: str) -> Verdict:
    """Ask Cloud Scheduler when it called last and what came of it; needs cloudscheduler.jobs.get."""
    import google.auth
    from google.auth.exceptions import GoogleAuthError
    from google.auth.transport.requests import AuthorizedSession

    try:
        credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        url = SCHEDULER.format(project=target.project, region=target.region, name=name)
        answer = AuthorizedSession(credentials).get(url, timeout=TIMEOUT)  # type: ignore[no-untyped-call]
    except GoogleAuthError as error:
        return not_checked(check, f"no Application Default Credentials ({type(error).__name__})")
    if answer.status_code == 403:
        return not_checked(check, "these credentials may not read the job (roles/cloudscheduler.viewer)")
    if answer.status_code != 200:
        return failed(check, f"Cloud Scheduler answers {answer.status_code} for the job")
    job = answer.json()
    wrong = [f"the job is {job.get('state')}"] if job.get("state") != "ENABLED" else []
    code = job.get("status", {}).get("code", 0)
    wrong += [f"its last call failed with code {code}: look at the function's log"] if code else []
    return _judge(check, job.get("lastAttemptTime"), wrong)


def _judge(check: str, last: str | None, wrong: list[str]) -> Verdict:
    if last is None:
        return failed(check, "it has never been called")
    ago = datetime.now(UTC) - datetime.fromisoformat(last)
    wrong = wrong + ([f"the last call was {ago.total_seconds():.0f} s ago"] if ago > RECENT else [])
    return judged(check, wrong, f"the last call was {max(ago.total_seconds(), 0):.0f} s ago")


def _trouble(found: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{s['step']} {s['state']} {s.get('error_kind') or ''}".strip() for s in found["steps"]) or "no step"
    )
