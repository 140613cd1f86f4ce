"""What an apply makes: who may do what, names, alerts and archives, and what one more step adds."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.infra import iam
from tests.infra.kit import LIMITS, ROOT, Deployment, need_terraform, planned, resources

need_terraform()
pytestmark = pytest.mark.timeout(240)

PROJECT_ROLES = {"roles/cloudsql.client", "roles/cloudsql.instanceUser", "roles/logging.logWriter"}
EVERYBODY = ("allUsers", "allAuthenticatedUsers")
STEP = """
      reward: # under operations: invoice.generate: steps:
        function: invoice_reward
        providers: [email]
        needs: [collect]
"""


def test_format_and_validity(deployment: Deployment) -> None:
    deployment.run("fmt", "-check", "-diff", "-recursive")
    assert "The configuration is valid" in deployment.run("validate")


def test_a_cheap_project_plans_too(deployment: Deployment, plan: dict[str, Any]) -> None:
    # Direct VPC egress in place of a connector, and nobody to tell of alerts.
    cheap = planned(deployment.plan("development"))
    assert planned(plan) - cheap == {
        "google_vpc_access_connector.this[0]",
        'google_monitoring_notification_channel.email["on-call@example.com"]',
    }
    assert cheap <= planned(plan)


def test_one_more_step_adds_just_what_is_its_own(deployment: Deployment, plan: dict[str, Any], tmp_path: Path) -> None:
    function = deployment.root / "functions" / "invoice_reward"
    function.mkdir()
    (function / "main.py").write_text('"""invoice_reward: loyalty points."""\n')
    more = tmp_path / "pipeline.yaml"
    text = (ROOT / "pipeline.yaml").read_text()
    more.write_text(text.replace("\n  # Everything invoiced", f"{STEP}\n  # Everything invoiced"))
    after = planned(deployment.plan(pipeline_file=str(more)))
    (function / "main.py").unlink()
    function.rmdir()
    assert planned(plan) - after == set()
    assert after - planned(plan) == set(_of_one_step("invoice_reward", follows="invoice_collect"))


def _of_one_step(name: str, follows: str) -> Iterator[str]:
    hyphened = name.replace("_", "-")
    yield f'module.function["{name}"].google_cloudfunctions2_function.this'
    yield f'module.function["{name}"].module.source.google_storage_bucket_object.this'
    for caller in ("push", "tasks"):
        yield f'module.function["{name}"].google_cloud_run_v2_service_iam_member.invoker["{caller}"]'
    for kind in ("google_pubsub_topic.step", "google_pubsub_subscription.step", "google_service_account.function"):
        yield f'{kind}["{name}"]'
    for kind in ("google_sql_user.this", "google_pubsub_subscription_iam_member.dead_letter_subscriber"):
        yield f'{kind}["{name}"]'
    for kind in ("google_cloud_tasks_queue_iam_member.delayed", "google_service_account_iam_member.act_as_tasks"):
        yield f'{kind}["{name}"]'
    yield f'google_project_iam_member.function["{name}/cloudsql.client"]'
    yield f'google_project_iam_member.function["{name}/cloudsql.instanceUser"]'
    for publisher, topic in (
        *((one, name) for one in ("relay", "reconcile", follows, name)),
        *((name, first) for first in ("invoice_record", "report_generate")),
    ):
        yield f'google_pubsub_topic_iam_member.publisher["{publisher}/{topic}"]'
    yield f'google_secret_manager_secret_iam_member.function["{name}/smtp-url"]'
    yield f'google_storage_bucket_iam_member.artifacts_reader["{name}"]'
    yield f'google_monitoring_alert_policy.this["step-{hyphened}"]'
    yield f'google_monitoring_alert_policy.this["instances-{hyphened}"]'


def test_the_table_of_rights_is_what_terraform_makes(state: dict[str, Any]) -> None:
    assert (ROOT / "docs" / "iam.md").read_text() == iam.table(state), "python -m tests.infra.iam writes docs/iam.md"


def test_nobody_has_a_right_beyond_a_resource_without_need(state: dict[str, Any]) -> None:
    bound = [resource for resource in resources(state) if "_iam_" in resource["type"]]
    assert len(bound) > 80
    assert all(resource["type"].endswith("_iam_member") for resource in bound), (
        "a binding or policy drops others' rights"
    )
    for resource in bound:
        role = resource["values"]["role"]
        assert resource["values"]["member"] not in EVERYBODY
        assert role not in {"roles/owner", "roles/editor", "roles/viewer"}
        assert not role.endswith("Admin")
        assert resource["type"] != "google_project_iam_member" or role in PROJECT_ROLES


def test_the_configuration_itself_names_nobody_at_all() -> None:
    texts = [path.read_text() for path in (ROOT / "infra").rglob("*.tf")]
    conditions = [line for text in texts for line in text.splitlines() if any(all_ in line for all_ in EVERYBODY)]
    assert all("!contains(" in line for line in conditions), "only a check may name them"
    assert "google_service_account_key" not in "".join(texts)


def test_internal_functions_take_calls_from_within_only(state: dict[str, Any]) -> None:
    ingress = {
        resource["values"]["name"]: resource["values"]["service_config"][0]["ingress_settings"]
        for resource in resources(state)
        if resource["type"] == "google_cloudfunctions2_function"
    }
    assert ingress.pop("intake") == "ALLOW_ALL"
    assert set(ingress.values()) == {"ALLOW_INTERNAL_ONLY"}


def test_names_are_as_short_as_google_wants_them(state: dict[str, Any]) -> None:
    for resource in resources(state):
        limit = LIMITS.get(resource["type"])
        name = resource["values"].get("account_id") or resource["values"].get("name") or ""
        assert limit is None or 0 < len(name) <= limit, resource["address"]


def test_every_alert_names_its_kind_of_resource_and_its_page(state: dict[str, Any]) -> None:
    runbook = (ROOT / "docs" / "runbook.md").read_text()
    sections = set()
    for resource in resources(state):
        if resource["type"] != "google_monitoring_alert_policy":
            continue
        for condition in resource["values"]["conditions"]:
            for threshold in condition["condition_threshold"]:
                for text in (threshold["filter"], threshold["denominator_filter"] or threshold["filter"]):
                    assert "resource.type=" in text
                    assert "metric.type=" in text
        told = re.search(r"section `([a-z-]+)`", resource["values"]["documentation"][0]["content"])
        assert told, resource["address"]
        sections.add(told[1])
    assert sections == set(re.findall(r"^## `([a-z-]+)`", runbook, re.MULTILINE))


def test_an_alert_counts_a_metric_that_is_made(state: dict[str, Any]) -> None:
    made = {r["values"]["name"] for r in resources(state) if r["type"] == "google_logging_metric"}
    texts = json.dumps([r["values"] for r in resources(state) if r["type"].startswith("google_monitoring_")])
    used = set(re.findall(r"logging\.googleapis\.com/user/(echoproof/[a-z_]+)", texts))
    assert used <= made
    assert {name for name in made if name.startswith("echoproof/sweeps") or "ticks" in name} <= used


def test_the_fields_of_log_metrics_are_logged(state: dict[str, Any]) -> None:
    from shared.reconcile import Sweep
    from shared.relay import Tick

    filters = json.dumps([r["values"] for r in resources(state) if r["type"] == "google_logging_metric"])
    assert set(re.findall(r"jsonPayload\.tick\.(\w+)", filters)) <= set(Tick.__dataclass_fields__)
    assert set(re.findall(r"jsonPayload\.sweep\.(\w+)", filters)) <= set(Sweep.__dataclass_fields__)
    for line, file in (
        ("relay tick", "relay.py"),
        ("reconcile sweep", "reconcile.py"),
        ("settled: ", "step_function.py"),
    ):
        assert line in filters
        assert f'"{line}' in (ROOT / "shared" / file).read_text()


def test_an_archive_has_the_function_at_its_root_and_nothing_left_over(
    deployment: Deployment, state: dict[str, Any]
) -> None:
    shared = {"shared/errors.py", "shared/review/plan.py", "shared/queries/pulse.sql"}
    with archive_of("invoice-record", deployment, state) as opened:
        assert opened.read("main.py") == (ROOT / "functions" / "invoice_record" / "main.py").read_bytes()
        assert set(opened.namelist()) == {"main.py", "pipeline.yaml", "requirements.txt", *shared}
    with archive_of("console", deployment, state) as opened:
        assert any(name.startswith("migrations/") for name in opened.namelist())


def archive_of(name: str, deployment: Deployment, state: dict[str, Any]) -> zipfile.ZipFile:
    """The archive that was uploaded for a function; its object's name follows from its content."""
    (source,) = (
        resource["values"]["source"]
        for resource in resources(state)
        if resource["type"] == "google_storage_bucket_object" and f"/{name}-" in resource["values"]["name"]
    )
    return zipfile.ZipFile(deployment.infra / source)


def test_a_second_apply_would_change_nothing(deployment: Deployment, state: object) -> None:
    # Exit code 2 would mean that there is something to do.
    deployment.run("plan", "-var-file=envs/production.tfvars", "-detailed-exitcode", codes=(0,))
