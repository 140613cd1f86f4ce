"""The smoke test that a user runs after an apply, here against the real pipeline on this machine."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from local.operating.surroundings import PIPELINE_FILE
from local.postgres import free_port
from local.smoke import calls, line
from local.smoke.command import EXAMPLE, examine
from local.smoke.target import LocalTokens, Target, in_the_cloud, on_this_machine
from local.smoke.verdict import Verdict
from local.stack import Stack
from shared.database import Connection, Database, connector
from shared.errors import ConfigError
from shared.pipeline import Pipeline
from tests.stack.kit import PATIENCE, folder_for_all

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

BODY = json.loads(EXAMPLE.read_bytes())
NUMBER = "123456789012"
# What does not apply to one machine, and says so.
NOT_HERE = {
    "tokens at intake": "needs no token on one's own machine",
    "ingress of internal functions": "no inside and outside",
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with folder_for_all() as folder, Stack(folder / "data", port=free_port(), tick=0.5) as stack:
        yield stack


@pytest.fixture(scope="module")
def verdicts(stack: Stack) -> dict[str, Verdict]:
    database = Database(connector(stack.addresses.database), size=1)
    target = on_this_machine(stack.data)
    found = list(examine(target, stack.pipeline, database, "shop", BODY, PATIENCE))
    database.close()
    return {verdict.check: verdict for verdict in found}


def test_every_check_holds_on_this_machine_or_says_why_it_does_not_apply(verdicts: dict[str, Verdict]) -> None:
    assert len(verdicts) == 20
    for check, verdict in verdicts.items():
        if check in NOT_HERE:
            assert verdict.level == "not checked"
            assert NOT_HERE[check] in verdict.found
        else:
            assert verdict.level == "ok", verdict


def test_a_right_too_many_is_found(stack: Stack) -> None:
    from local.smoke import rights

    connection = Connection(connector(stack.addresses.database)())
    connection.execute("GRANT INSERT (tenant) ON identities TO echoproof_relay")
    connection.execute("GRANT DELETE ON operations TO echoproof_console")
    database = Database(connector(stack.addresses.database), size=1)
    try:
        found = {verdict.check: verdict for verdict in rights.roles(database, stack.pipeline)}
    finally:
        connection.execute("REVOKE INSERT (tenant) ON identities FROM echoproof_relay")
        connection.execute("REVOKE DELETE ON operations FROM echoproof_console")
        database.close()
        connection.close()
    verdict = found["database roles can do no more"]
    assert verdict.level == "failed"
    assert "echoproof_relay may INSERT identities" in verdict.found
    assert "echoproof_console may DELETE operations" in verdict.found


@contextlib.contextmanager
def answering(status: int, tmp_path: Path) -> Iterator[Target]:
    """A deployment that answers everybody the same and does nothing."""

    class Answering(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            assert body
            self.do_GET()

        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield Target(url, {"relay": url}, LocalTokens(tmp_path), intake_token="a.b.c", project="p", region="r")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize(("status", "level"), [(200, "failed"), (401, "failed"), (403, "not checked"), (404, "ok")])
def test_ingress_is_judged_by_what_only_ingress_answers(tmp_path: Path, status: int, level: str) -> None:
    with answering(status, tmp_path) as target:
        assert calls.ingress(target).level == level


def test_a_deployment_that_lets_everybody_in_fails(tmp_path: Path) -> None:
    with answering(200, tmp_path) as target:
        found = [*calls.push_authentication(target), calls.ingress(target), calls.tokens(target)]
    assert {verdict.level for verdict in found} == {"failed"}
    assert "no token is answered 200" in found[0].found


def test_a_deployment_that_does_not_answer_fails_and_the_checks_go_on(tmp_path: Path) -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    target = Target(nowhere, {"relay": nowhere}, LocalTokens(tmp_path), local=True, data=tmp_path)
    found = list(examine(target, Pipeline.load(PIPELINE_FILE), None, "shop", BODY, 5))
    levels = {verdict.check: verdict.level for verdict in found}
    assert levels.pop("ingress of internal functions") == "not checked"
    assert levels.pop("tokens at intake") == "not checked"
    assert levels.pop("database roles") == "not checked"
    assert set(levels.values()) == {"failed"}


def test_a_tick_long_ago_fails(tmp_path: Path) -> None:
    (tmp_path / "relay.log").write_text('{"message": "relay tick", "time": "2026-01-01T00:00:00.000000+00:00"}\n')
    target = Target("", {}, LocalTokens(tmp_path), local=True, data=tmp_path)
    assert line.scheduler(target, "relay").level == "failed"
    assert line.scheduler(target, "reconcile").found == "no `reconcile sweep` in reconcile.log"


def test_the_addresses_of_a_deployment_follow_from_intakes(tmp_path: Path) -> None:
    pipeline = Pipeline.load(PIPELINE_FILE)
    url = f"https://intake-{NUMBER}.europe-west1.run.app"
    target = in_the_cloud("my-project", url, None, pipeline, LocalTokens(tmp_path))
    assert target.internal["dead_letter"] == f"https://dead-letter-{NUMBER}.europe-west1.run.app"
    assert set(target.internal) == {"relay", "reconcile", "dead_letter", *pipeline.functions}
    with pytest.raises(ConfigError, match="intake_url of Terraform"):
        in_the_cloud("my-project", "https://example.com", None, pipeline, LocalTokens(tmp_path))
