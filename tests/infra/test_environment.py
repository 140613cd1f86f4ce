"""The functions start with what Terraform gives them, and everybody means the same address by a name."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from typing import Any

import pytest

from shared.pipeline import Pipeline
from tests.infra.kit import PATIENCE, ROOT, need_terraform, resources

need_terraform()
pytestmark = pytest.mark.timeout(240)

SECRETS = {  # any values of the right form
    "CONSOLE_SECRET": "c" * 64,
    "PAYMENTS_KEY": "sk_test_key",
    "SMTP_URL": "smtps://user:word@mail.example.com:465",
    "WEBHOOK_SECRET": f"whsec_{base64.b64encode(b'w' * 24).decode()}",
}
STEPS = Pipeline.load(ROOT / "pipeline.yaml").functions


def environments(state: dict[str, Any]) -> dict[str, dict[str, str]]:
    """What each function finds in its environment once Cloud Run has resolved its secrets."""
    found = {}
    for resource in resources(state):
        values = resource["values"]
        if resource["type"] == "google_cloudfunctions2_function":
            config = values["service_config"][0]
            given = dict(config["environment_variables"])
            secret = {one["key"]: SECRETS[one["key"]] for one in config["secret_environment_variables"]}
            found[values["name"].replace("-", "_")] = given | secret
        elif resource["type"] == "google_cloud_run_v2_service":
            env = values["template"][0]["containers"][0]["env"]
            found["console"] = {one["name"]: SECRETS.get(one["name"], one["value"]) for one in env}
    return found


def test_every_function_starts_with_what_terraform_gives_it(state: dict[str, Any]) -> None:
    given = environments(state)
    assert set(given) == {"intake", "relay", "reconcile", "dead_letter", "console", *STEPS}
    cloud = {name: env | {"K_SERVICE": name} for name, env in given.items()}
    known = {name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG"}}
    done = subprocess.run(
        [sys.executable, "-m", "tests.infra.boot"],
        cwd=ROOT, env=known, input=json.dumps(cloud), capture_output=True, text=True, timeout=PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stderr.splitlines()[-1]) == {}


def test_a_tokens_audience_is_the_address_that_its_function_expects(state: dict[str, Any]) -> None:
    given = environments(state)
    accounts: dict[str, set[str]] = {name: set(env.get("PUSH_ACCOUNT", "").split(",")) for name, env in given.items()}
    called = set()
    for resource in resources(state):
        values = resource["values"]
        if resource["type"] == "google_pubsub_subscription" and values["push_config"]:
            push = values["push_config"][0]
            url, token = push["push_endpoint"], push["oidc_token"][0]
        elif resource["type"] == "google_cloud_scheduler_job":
            url, token = values["http_target"][0]["uri"], values["http_target"][0]["oidc_token"][0]
        else:
            continue
        function = values["name"].replace("-", "_")
        assert url == token["audience"] == given[function]["PUSH_AUDIENCE"]
        assert token["service_account_email"] in accounts[function]
        called.add(function)
    assert called == {"relay", "reconcile", "dead_letter", *STEPS}


def test_writers_know_where_every_step_listens(state: dict[str, Any]) -> None:
    given = environments(state)
    for name, env in given.items():
        if name == "console":
            continue
        urls = json.loads(env["STEP_URLS"])
        assert urls == {step: given[step]["PUSH_AUDIENCE"] for step in STEPS}
        assert all(env["TASKS_ACCOUNT"] in given[step]["PUSH_ACCOUNT"].split(",") for step in STEPS)


def test_as_many_threads_as_requests_and_no_more_connections(state: dict[str, Any]) -> None:
    for resource in resources(state):
        if resource["type"] != "google_cloudfunctions2_function":
            continue
        config = resource["values"]["service_config"][0]
        env = config["environment_variables"]
        assert env["THREADS"] == str(config["max_instance_request_concurrency"])
        assert int(env["POOL_SIZE"]) <= int(env["THREADS"])
        assert config["max_instance_count"] >= 1
