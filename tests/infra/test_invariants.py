"""What cannot hold is refused before anything is made, by Terraform's own tests and with words that help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shared.pipeline import Pipeline
from shared.pipeline_file import PipelineError
from tests.infra.kit import ROOT, Deployment, need_terraform

need_terraform()
pytestmark = pytest.mark.timeout(240)

PIPELINES = ROOT / "infra" / "tests" / "pipelines"
HOLD = {"holds", "longest", "shortest_retention"}
OTHERS = {"mail", "no_folder", "webhook"}  # about what stands beside the file
BROKEN = """
version: 1
retention: {operations: 90d, identities: 91d}
defaults: {transport: pubsub, attempts: 5, backoff: {min: 10s, max: 10m}, timeout: 40s, lease: 60s, max_waits: 50}
operations:
  order.ship:
    steps:
      pack: {function: order_pack_in_a_box_of_wood, lease: 30s}
      label: {function: relay, pacing: {per_second: 1}}
      send: {function: order_send, timeout: 10m, lease: 11m}
      tell: {function: order_send, providers: [email, webhook]}
      later: {function: order_later, transport: tasks, timeout: 30m, lease: 31m}
"""
BARE = """
callers   = { "app@my-project.iam.gserviceaccount.com" = ["shop"] }
console   = { viewers = ["ada@example.com"] }
functions = { typo = { max_instances = 1 } }
project   = "my-project"
"""
WORDS = (  # what each refusal says to change
    "lengthen lease in pipeline.yaml of order.ship/pack (timeout 40s, lease 30s)",
    "lengthen retention.identities",
    "rename order_pack_in_a_box_of_wood",
    "rename relay",
    "make functions/order_later/main.py",
    "give the steps of order_send the same transport, timeout and pacing",
    "use transport: tasks in pipeline.yaml for order.ship/label",
    "correct the keys of functions",
    "set mail, such as",
    "set webhook_url",
)


def test_terraforms_own_tests(deployment: Deployment) -> None:
    """`expect_failures` for each violation, in infra/tests."""
    told = deployment.run("test")
    passed = re.search(r"Success! (\d+) passed, 0 failed\.", told)
    assert passed, told
    assert int(passed[1]) > 40


def test_each_refusal_says_what_to_change(deployment: Deployment, tmp_path: Path) -> None:
    file = tmp_path / "pipeline.yaml"
    file.write_text(BROKEN)
    given = tmp_path / "bare.tfvars"
    given.write_text(BARE)
    told = deployment.run("plan", f"-var-file={given}", f"-var=pipeline_file={file}", codes=(1,))
    said = re.sub(r"[\s│]+", " ", told)
    assert [words for words in WORDS if words not in said] == []


def test_words_on_connections(deployment: Deployment) -> None:
    told = deployment.run("plan", "-var-file=envs/production.tfvars", "-var=database={max_connections=100}", codes=(1,))
    said = re.sub(r"[\s│]+", " ", told)
    assert "but database.max_connections is 100: lower max_instances or pool_size" in said
    needed = re.search(r"may open (\d+) connections", said)
    assert needed
    assert f"| {needed[1]} / 400 |" in (ROOT / "docs" / "deploy.md").read_text(), (
        "the table of sizes says another number"
    )


@pytest.mark.parametrize("file", sorted(PIPELINES.glob("*.yaml")), ids=lambda file: file.stem)
def test_python_and_terraform_agree_on_a_pipeline_file(file: Path) -> None:
    """What Terraform refuses of a file the functions refuse at their start, and the other way round."""
    if file.stem in HOLD | OTHERS:
        assert Pipeline.load(file).steps
        return
    with pytest.raises(PipelineError):
        Pipeline.load(file)


def test_every_pipeline_file_is_used() -> None:
    tests = (ROOT / "infra" / "tests" / "invariants.tftest.hcl").read_text()
    assert set(re.findall(r"pipelines/(\w+)\.yaml", tests)) == {file.stem for file in PIPELINES.glob("*.yaml")}
