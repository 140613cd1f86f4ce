"""Settings: every problem at once, what to do, and no secret in any text (case 49)."""

import traceback
from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import ValidationError

from shared.config import (
    DatabaseSettings,
    DeliverySettings,
    IntakeSettings,
    ProjectSettings,
    PushSettings,
    check_timeouts,
    load,
)
from shared.errors import ConfigError
from shared.settings import EnvironmentSettings
from shared.token_certificates import GOOGLE_CERTIFICATES
from shared.tokens import TokenVerifier

CANARY = "c4nary"
URL = f"postgresql://app:{CANARY}@127.0.0.1:5432/echoproof"
CLOUD_SQL = {
    "INSTANCE_CONNECTION_NAME": "project:europe-west2:main",
    "DATABASE_NAME": "echoproof",
    "DATABASE_USER": "intake@project.iam",
}
PUSH = {"PUSH_AUDIENCE": "https://f.example", "PUSH_ACCOUNT": "push@project.iam.gserviceaccount.com"}
DELIVERY = {
    "TASKS_LOCATION": "europe-west2",
    "TASKS_ACCOUNT": "tasks@project.iam.gserviceaccount.com",
    "STEP_URLS": '{"invoice_record": "https://record.example", "other": "http://127.0.0.1:1"}',
}
INTAKE = {
    "CALLERS": '{"app@project.iam.gserviceaccount.com": ["shop", "shop-2"], "ops@example.com": ["*"]}',
    "INTAKE_AUDIENCE": "https://intake.example",
}


def problems(*groups: type[EnvironmentSettings], **env: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(*groups, env=env)
    assert CANARY not in "".join(traceback.format_exception(caught.value))
    return caught.value.problems


def test_every_problem_of_every_group_is_told_at_once() -> None:
    found = problems(DatabaseSettings, ProjectSettings, PushSettings, IntakeSettings, POOL_SIZE="many")
    assert [line.split(":")[0] for line in found] == [
        "POOL_SIZE",
        "DATABASE_URL",
        "GOOGLE_CLOUD_PROJECT",
        "PUSH_AUDIENCE",
        "PUSH_ACCOUNT",
        "CALLERS",
    ]
    assert all("; set it" in line for line in found)


def test_a_problem_of_two_groups_is_told_once() -> None:
    found = problems(PushSettings, IntakeSettings, TOKEN_MODE="none", **PUSH, **INTAKE)
    assert len(found) == 1
    assert found[0].startswith("TOKEN_MODE: Input should be 'signature' or 'platform'; set it to signature")


def test_a_database_by_url() -> None:
    (database,) = load(DatabaseSettings, env={"DATABASE_URL": URL, "STATEMENT_TIMEOUT": "5s", "POOL_SIZE": "3"})
    assert database.database_url is not None
    assert database.database_url.get_secret_value() == URL
    assert (database.pool_size, database.statement_timeout) == (3, timedelta(seconds=5))
    assert CANARY not in f"{database!r}{database!s}{database.model_dump()}{database.model_dump_json()}"


def test_a_database_on_cloud_sql() -> None:
    (database,) = load(DatabaseSettings, env=CLOUD_SQL)
    assert database.database_url is None
    assert database.instance_connection_name == "project:europe-west2:main"
    assert (database.pool_size, database.statement_timeout) == (2, timedelta(seconds=15))


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({}, "DATABASE_URL: is not set; set it, or for Cloud SQL INSTANCE_CONNECTION_NAME, DATABASE_NAME"),
        ({"DATABASE_URL": ""}, "DATABASE_URL: is not set"),
        ({"DATABASE_URL": "  "}, "DATABASE_URL: is not set"),
        (CLOUD_SQL | {"DATABASE_URL": URL}, "DATABASE_URL: is set beside "),
        ({"DATABASE_NAME": "echoproof"}, "INSTANCE_CONNECTION_NAME, DATABASE_USER: is not set"),
        (CLOUD_SQL | {"INSTANCE_CONNECTION_NAME": "main"}, "INSTANCE_CONNECTION_NAME: "),
        ({"DATABASE_URL": f"mysql://u:{CANARY}@h/d"}, "DATABASE_URL: is not a URL of a PostgreSQL database"),
        ({"DATABASE_URL": f"postgresql://u:{CANARY}@/d"}, "DATABASE_URL: is not a URL"),
        ({"DATABASE_URL": f"postgresql://u:{CANARY}@h:port/d"}, "DATABASE_URL: is not a URL"),
        ({"DATABASE_URL": f"postgresql://u:{CANARY}@[::1/d"}, "DATABASE_URL: is not a URL"),
        ({"DATABASE_URL": CANARY}, "DATABASE_URL: is not a URL"),
        ({"DATABASE_URL": URL, "POOL_SIZE": "0"}, "POOL_SIZE: "),
        ({"DATABASE_URL": URL, "POOL_SIZE": "2.5"}, "POOL_SIZE: "),
        ({"DATABASE_URL": URL, "STATEMENT_TIMEOUT": "15"}, "STATEMENT_TIMEOUT: must be a duration like"),
    ],
)
def test_a_wrong_database(env: dict[str, str], problem: str) -> None:
    found = problems(DatabaseSettings, **env)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_timeouts_must_end_before_the_shortest_lease() -> None:
    pipeline = load(ProjectSettings, env={"GOOGLE_CLOUD_PROJECT": "local"})[0].pipeline()
    check_timeouts(load(DatabaseSettings, env={"DATABASE_URL": URL})[0], pipeline)
    late = {"DATABASE_URL": URL, "STATEMENT_TIMEOUT": "60s", "LOCK_TIMEOUT": "2m"}
    with pytest.raises(ConfigError) as caught:
        check_timeouts(load(DatabaseSettings, env=late)[0], pipeline)
    assert caught.value.problems == [
        "STATEMENT_TIMEOUT: must be shorter than the shortest lease, 60s",
        "LOCK_TIMEOUT: must be shorter than the shortest lease, 60s",
    ]


def test_the_pipeline_file_is_the_one_beside_shared_unless_set(tmp_path: Path) -> None:
    (project,) = load(ProjectSettings, env={"GOOGLE_CLOUD_PROJECT": "my-project-1"})
    assert project.google_cloud_project == "my-project-1"
    assert "invoice.generate" in project.pipeline().operations
    other = tmp_path / "other.yaml"
    (project,) = load(ProjectSettings, env={"GOOGLE_CLOUD_PROJECT": "p-1x", "PIPELINE_FILE": str(other)})
    assert project.pipeline_file == other
    with pytest.raises(ConfigError):
        project.pipeline()


def test_pushes() -> None:
    (push,) = load(PushSettings, env=PUSH)
    assert push.push_account == {"push@project.iam.gserviceaccount.com"}
    assert (push.token_certs_url, push.token_mode) == (GOOGLE_CERTIFICATES, "signature")
    verifier = push.verifier()
    assert isinstance(verifier, TokenVerifier)
    assert (verifier.audience, verifier.emails) == (push.push_audience, push.push_account)


def test_several_accounts_may_call() -> None:
    (push,) = load(PushSettings, env=PUSH | {"PUSH_ACCOUNT": "push@p.iam, tasks@p.iam"})
    assert push.push_account == {"push@p.iam", "tasks@p.iam"}


@pytest.mark.parametrize(
    ("env", "problem"),
    [
        ({"PUSH_ACCOUNT": "push"}, "PUSH_ACCOUNT: is not an e-mail address"),
        ({"PUSH_ACCOUNT": "a@b,"}, "PUSH_ACCOUNT: is not an e-mail address"),
        ({"PUSH_ACCOUNT": "A@b"}, "PUSH_ACCOUNT: is not an e-mail address in lower case"),
        ({"PUSH_AUDIENCE": "a b"}, "PUSH_AUDIENCE: "),
        ({"TOKEN_CERTS_URL": "http://certs.example/"}, "TOKEN_CERTS_URL: must be https"),
        ({"TOKEN_CERTS_URL": "http://127.0.0.1.example/"}, "TOKEN_CERTS_URL: must be https"),
        ({"TOKEN_CERTS_URL": "ftp://localhost/"}, "TOKEN_CERTS_URL: must be https"),
        ({"TOKEN_MODE": "platform"}, "TOKEN_MODE: is platform, but nothing verifies signatures"),
    ],
)
def test_wrong_pushes(env: dict[str, str], problem: str) -> None:
    found = problems(PushSettings, **PUSH | env)
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_certificates_of_this_machine_and_platform_mode_on_cloud_run() -> None:
    (push,) = load(PushSettings, env=PUSH | {"TOKEN_CERTS_URL": "http://127.0.0.1:8099/certs"})
    assert push.token_certs_url == "http://127.0.0.1:8099/certs"
    (push,) = load(PushSettings, env=PUSH | {"TOKEN_MODE": "platform", "K_SERVICE": "invoice-record"})
    assert push.token_mode == "platform"


def test_callers_and_their_tenants() -> None:
    (intake,) = load(IntakeSettings, env=INTAKE)
    app = "app@project.iam.gserviceaccount.com"
    assert intake.allows(app, "shop")
    assert intake.allows(app, "shop-2")
    assert not intake.allows(app, "shop-3")
    assert not intake.allows(app, "*")
    assert intake.allows("ops@example.com", "anything")
    assert not intake.allows("anonymous", "shop")
    assert not intake.allows("", "shop")
    verifier = intake.verifier()
    assert verifier is not None
    assert verifier.emails == frozenset({app, "ops@example.com"})


def test_anonymous_needs_no_token_but_only_on_ones_own_machine() -> None:
    local = {"CALLERS": '{"anonymous": ["*"]}'}
    (intake,) = load(IntakeSettings, env=local)
    assert intake.allows("anonymous", "shop")
    assert intake.verifier() is None
    (found,) = problems(IntakeSettings, K_SERVICE="intake", **local)
    assert found.startswith("CALLERS: has the caller anonymous")
    both = {"CALLERS": '{"anonymous": ["shop"], "a@b": ["shop"]}'}
    assert problems(IntakeSettings, **both)[0].startswith("INTAKE_AUDIENCE: is not set")


def test_anonymous_is_refused_on_cloud_run_however_the_settings_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    callers = {"anonymous": frozenset({"*"})}
    monkeypatch.setenv("K_SERVICE", "intake")
    with pytest.raises(ValidationError):
        IntakeSettings(callers=callers)
    monkeypatch.delenv("K_SERVICE")
    assert IntakeSettings(callers=callers).allows("anonymous", "shop")


@pytest.mark.parametrize(
    "callers",
    [
        "{",
        "[]",
        '"a@b"',
        "{}",
        '{"a@b": "shop"}',
        '{"a@b": [1]}',
        '{"a@b": ["Shop"]}',
        '{"a@b": ["shop/x"]}',
        '{"a@b": [""]}',
        '{"A@b": ["shop"]}',
        '{"everybody": ["shop"]}',
        '{"*": ["shop"]}',
        '{"": ["shop"]}',
        '{"a@b": ["shop"], "a@b": ["*"]}',
        '{"a@b": null}',
    ],
)
def test_wrong_callers(callers: str) -> None:
    found = problems(IntakeSettings, CALLERS=callers, INTAKE_AUDIENCE="https://intake.example")
    assert found
    assert all(line.startswith("CALLERS: ") for line in found)


def test_settings_are_frozen() -> None:
    (push,) = load(PushSettings, env=PUSH)
    with pytest.raises(ValidationError):
        push.push_audience = "other"  # type: ignore[misc]


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", URL)
    assert load(DatabaseSettings)[0].database_url is not None


def test_delivery() -> None:
    (delivery,) = load(DeliverySettings, env=DELIVERY)
    assert delivery.step_urls == {"invoice_record": "https://record.example", "other": "http://127.0.0.1:1"}
    assert delivery.publish_at_once
    assert not load(DeliverySettings, env=DELIVERY | {"PUBLISH_AT_ONCE": "false"})[0].publish_at_once


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("TASKS_LOCATION", "", "TASKS_LOCATION: is not set; set it to the queues' region, like europe-west2"),
        ("TASKS_LOCATION", "Europe", "TASKS_LOCATION: "),
        ("TASKS_ACCOUNT", "tasks", "TASKS_ACCOUNT: is not an e-mail address in lower case"),
        ("STEP_URLS", "", "STEP_URLS: is not set"),
        ("STEP_URLS", "{", "STEP_URLS: is not JSON"),
        ("STEP_URLS", '["https://a.example"]', "STEP_URLS: "),
        ("STEP_URLS", '{"a": 1}', "STEP_URLS: "),
        ("STEP_URLS", '{"a": "http://a.example"}', "STEP_URLS: must be https, unless the server is on this machine"),
        ("PUBLISH_AT_ONCE", "perhaps", "PUBLISH_AT_ONCE: "),
    ],
)
def test_a_wrong_delivery(name: str, value: str, problem: str) -> None:
    found = problems(DeliverySettings, **DELIVERY | {name: value})
    assert len(found) == 1
    assert found[0].startswith(problem)


def test_every_step_function_needs_its_url() -> None:
    pipeline = load(ProjectSettings, env={"GOOGLE_CLOUD_PROJECT": "local"})[0].pipeline()
    with pytest.raises(ConfigError) as caught:
        load(DeliverySettings, env=DELIVERY)[0].check(pipeline)
    assert caught.value.problems[0].startswith("STEP_URLS: has no URL of invoice_collect, invoice_render, ")
