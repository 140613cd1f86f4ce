"""The pipeline file: what it says, and every way in which it can be wrong."""

import dataclasses
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import ConfigError
from shared.pipeline import Backoff, Limits, Pacing, Pipeline, Retention, UnknownStepError, UnknownTypeError, in_order
from shared.pipeline_file import PipelineError, parse

FILE = Path(__file__).parents[2] / "pipeline.yaml"
DEFAULTS = {
    "transport": "pubsub",
    "attempts": 5,
    "backoff": {"min": "10s", "max": "10m"},
    "lease": "60s",
    "timeout": "40s",
    "max_waits": 50,
}


def written(steps: dict[str, Any], **defaults: Any) -> str:
    """A pipeline file of one operation type."""
    found = {name: value for name, value in (DEFAULTS | defaults).items() if value is not None}
    return yaml.safe_dump({"version": 1, "defaults": found, "operations": {"order.ship": {"steps": steps}}})


def problems(text: str) -> list[str]:
    with pytest.raises(PipelineError) as caught:
        parse(text, "p.yaml")
    return caught.value.problems


def test_the_committed_file() -> None:
    pipeline = Pipeline.load(FILE)
    assert list(pipeline.operations) == ["invoice.generate", "report.generate"]
    assert pipeline.functions == (
        "invoice_record",
        "invoice_collect",
        "invoice_render",
        "invoice_notify",
        "invoice_announce",
        "report_generate",
        "report_notify",
    )
    assert pipeline.limits == Limits(200)
    assert pipeline.retention == Retention(timedelta(days=90), timedelta(days=400))
    invoice = pipeline.operation("invoice.generate")
    assert [step.name for step in invoice.first_steps] == ["record"]
    assert [step.name for step in invoice.children_of("record")] == ["collect", "announce"]
    assert [step.name for step in invoice.children_of(invoice.steps["render"])] == ["notify"]
    assert invoice.children_of("announce") == ()
    record = pipeline.step("invoice.generate", "record")
    assert (record.topic, record.type, record.transport) == ("invoice-record", "invoice.generate", "pubsub")
    assert record.backoff == Backoff(timedelta(seconds=10), timedelta(minutes=10))
    assert (record.lease, record.timeout) == (timedelta(seconds=60), timedelta(seconds=40))
    assert (record.attempts, record.max_waits, record.pacing) == (5, 50, None)


def test_case_4_two_steps_of_one_name_are_two_steps() -> None:
    pipeline = Pipeline.load(FILE)
    one, other = pipeline.step("invoice.generate", "notify"), pipeline.step("report.generate", "notify")
    assert one.function != other.function
    assert pipeline.steps_of("report_notify") == (other,)
    assert pipeline.steps_of("nothing") == ()


def test_what_is_not_in_the_pipeline() -> None:
    pipeline = Pipeline.load(FILE)
    with pytest.raises(UnknownTypeError):
        pipeline.step("invoice.delete", "record")
    with pytest.raises(UnknownStepError):
        pipeline.step("invoice.generate", "delete")


def test_the_pipeline_cannot_be_changed() -> None:
    pipeline = Pipeline.load(FILE)
    with pytest.raises(TypeError):
        pipeline.operations["x"] = pipeline.operations["invoice.generate"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        pipeline.step("invoice.generate", "record").attempts = 9  # type: ignore[misc]


def test_a_step_says_what_differs_from_the_defaults() -> None:
    text = written(
        {
            "pack": {"function": "order_pack"},
            "ship": {
                "function": "order_ship",
                "needs": ["pack"],
                "transport": "tasks",
                "attempts": 9,
                "backoff": {"min": "250ms", "max": "1h30m"},
                "lease": "3m",
                "timeout": "2m",
                "max_waits": 0,
                "pacing": {"per_second": 5, "concurrent": 2},
            },
        }
    )
    ship = parse(text).step("order.ship", "ship")
    assert ship.backoff == Backoff(timedelta(milliseconds=250), timedelta(minutes=90))
    assert (ship.attempts, ship.max_waits, ship.transport) == (9, 0, "tasks")
    assert ship.pacing == Pacing(per_second=5, concurrent=2)


def test_limits_retention_and_ordering_are_optional() -> None:
    text = written({"pack": {"function": "order_pack"}})
    plain = parse(text)
    assert (plain.limits, plain.retention, plain.going_on_in_review) == (Limits(), None, [])
    kept = "limits: {in_flight_per_tenant: 7}\nretention: {operations: 90d, identities: 127d}\n"
    full = parse(kept + text.replace("    steps:", "    ordering: {review: go_on}\n    steps:"))
    assert full.limits == Limits(7)
    assert full.retention == Retention(timedelta(days=90), timedelta(days=127))
    assert full.going_on_in_review == ["order.ship"]


@pytest.mark.parametrize(
    ("kept", "problem"),
    [
        (
            "limits: {in_flight_per_tenant: 0}",
            "limits.in_flight_per_tenant: Input should be greater than or equal to 1",
        ),
        ("limits: {in_flight: 5}", "limits.in_flight: unknown key"),
        ("retention: {operations: 90d}", "retention.identities: is missing"),
        ("retention: {operations: 90d, identities: 126d23h}", "retention.identities: at least 127d with operations"),
        ("retention: {operations: 1h, identities: 37d}", "retention.identities: at least 38d with operations 3600s"),
    ],
)
def test_wrong_limits_and_identities_kept_too_short_are_told(kept: str, problem: str) -> None:
    (found,) = problems(kept + "\n" + written({"pack": {"function": "order_pack"}}))
    assert found.startswith(f"p.yaml: {problem}")


def test_steps_come_in_topological_order() -> None:
    text = written(
        {
            "last": {"function": "f_last", "needs": ["left", "right"]},
            "left": {"function": "f_left", "needs": ["first"]},
            "right": {"function": "f_right", "needs": ["first"]},
            "first": {"function": "f_first"},
        }
    )
    operation = parse(text).operation("order.ship")
    assert list(operation.steps) == ["first", "left", "right", "last"]
    assert [step.name for step in operation.children_of("first")] == ["left", "right"]


@pytest.mark.parametrize(
    ("step", "problem"),
    [
        ({}, "function: is missing"),
        ({"function": "order_pack", "retries": 3}, "retries: unknown key"),
        ({"function": "order-pack"}, "function: must be lower-case words"),
        ({"function": "Order"}, "function: must be lower-case words"),
        ({"function": "order__pack"}, "function: must be lower-case words"),
        ({"function": "order_"}, "function: must be lower-case words"),
        ({"function": "1order"}, "function: must be lower-case words"),
        ({"function": "o" * 26}, "function: String should have at most 25 characters"),
        ({"function": "relay"}, "function: relay is a function of the platform"),
        ({"function": "order_pack", "needs": ["wrap"]}, "needs: wrap: no such step"),
        ({"function": "order_pack", "needs": "wrap"}, "needs: Input should be a valid list"),
        ({"function": "order_pack", "transport": "kafka"}, "transport: Input should be 'pubsub' or 'tasks'"),
        ({"function": "order_pack", "attempts": 0}, "attempts: Input should be greater than or equal to 1"),
        ({"function": "order_pack", "attempts": "5"}, "attempts: Input should be a valid integer"),
        ({"function": "order_pack", "attempts": True}, "attempts: Input should be a valid integer"),
        ({"function": "order_pack", "max_waits": -1}, "max_waits: Input should be greater than or equal to 0"),
        ({"function": "order_pack", "lease": 60}, "lease: must be a duration"),
        ({"function": "order_pack", "lease": "1 m"}, "lease: must be a duration"),
        ({"function": "order_pack", "lease": "40s"}, "lease: must be longer than timeout (40s)"),
        ({"function": "order_pack", "timeout": "60s"}, "lease: must be longer than timeout (60s)"),
        ({"function": "order_pack", "timeout": "0s"}, "timeout: must be longer than zero"),
        ({"function": "order_pack", "timeout": "999ms"}, "timeout: at least 1s"),
        (
            {"function": "order_pack", "timeout": "10m", "lease": "11m"},
            "timeout: at most 570s with transport pubsub",
        ),
        (
            {"function": "order_pack", "timeout": "30m", "lease": "31m", "transport": "tasks"},
            "timeout: at most 1770s with transport tasks",
        ),
        ({"function": "order_pack", "backoff": {"min": "1m"}}, "backoff.max: is missing"),
        ({"function": "order_pack", "backoff": {"min": "2m", "max": "1m"}}, "backoff: min must not be longer"),
        ({"function": "order_pack", "backoff": {"min": "2m", "max": "25h"}}, "backoff.max: at most 86400s"),
        ({"function": "order_pack", "pacing": {"per_second": 1}}, "pacing: needs transport tasks"),
        ({"function": "order_pack", "transport": "tasks", "pacing": {}}, "pacing: needs per_second"),
        (
            {"function": "order_pack", "transport": "tasks", "pacing": {"per_second": 0}},
            "pacing.per_second: Input should be greater than 0",
        ),
        (
            {"function": "order_pack", "transport": "tasks", "pacing": {"concurrent": 1.5}},
            "pacing.concurrent: Input should be a valid integer",
        ),
    ],
)
def test_a_wrong_step_is_told_by_file_and_key(step: dict[str, Any], problem: str) -> None:
    found = problems(written({"pack": step}))
    assert len(found) == 1
    assert found[0].startswith(f"p.yaml: operations.order.ship.steps.pack.{problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "p.yaml: (the whole file): Input should be"),
        ("[]", "p.yaml: (the whole file): Input should be"),
        ("a: [", "p.yaml: line 1: "),
        ("\t", "p.yaml: line 1: "),
        ("a: 1\nb: 2\na: 3", "p.yaml: line 3: the key a occurs twice"),
        ("a: {b: {c: 1, c: 1}}", "p.yaml: line 1: the key c occurs twice"),
        ("a: !!python/object/apply:os.getcwd []", "p.yaml: line 1: "),
        ("a: *nothing", "p.yaml: line 1: "),
        ("\x00", "p.yaml: is not YAML"),
        (written({}), "p.yaml: operations.order.ship.steps: "),
        (written({"Pack": {"function": "order_pack"}}), "p.yaml: operations.order.ship.steps.Pack: must be"),
        (written({"pack": None}), "p.yaml: operations.order.ship.steps.pack: "),
        (written({"pack": {"function": "order_pack"}}).replace("version: 1", "version: 2"), "p.yaml: version: "),
        (
            written({"pack": {"function": "order_pack"}}).replace("order.ship", "order-ship"),
            "p.yaml: operations.order-ship: must be",
        ),
        (written({"pack": {"function": "order_pack"}}, attempts=None), "p.yaml: defaults.attempts: is missing"),
        (written({"pack": {"function": "order_pack"}}, needs=[]), "p.yaml: defaults.needs: unknown key"),
        (written({"pack": {"function": "order_pack"}}) + "more: 1\n", "p.yaml: more: unknown key"),
    ],
)
def test_a_wrong_file_is_told_by_file_and_key(text: str, problem: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith(problem)


@pytest.mark.parametrize(
    ("needs", "cyclic"),
    [
        ({"aa": ["aa"]}, "aa"),
        ({"aa": ["bb"], "bb": ["aa"]}, "aa, bb"),
        ({"aa": [], "bb": ["dd"], "cc": ["bb"], "dd": ["cc", "aa"]}, "bb, cc, dd"),
    ],
)
def test_a_cycle_is_told(needs: dict[str, list[str]], cyclic: str) -> None:
    steps = {name: {"function": f"f_{name}", "needs": needed} for name, needed in needs.items()}
    assert problems(written(steps)) == [f"p.yaml: operations.order.ship.steps: in or behind a cycle: {cyclic}"]


def test_a_need_named_twice_is_told() -> None:
    steps = {"aa": {"function": "f_aa"}, "bb": {"function": "f_bb", "needs": ["aa", "aa"]}}
    assert problems(written(steps)) == ["p.yaml: operations.order.ship.steps.bb.needs: a name occurs twice"]


def test_steps_of_one_function_are_delivered_alike() -> None:
    steps = {"aa": {"function": "send"}, "bb": {"function": "send", "timeout": "50s"}, "cc": {"function": "send"}}
    assert problems(written(steps)) == [
        "p.yaml: operations.order.ship.steps.bb.timeout: must be as in order.ship.aa, which has the same function"
    ]


def test_every_problem_is_told_at_once() -> None:
    found = problems(written({"aa": {"function": "A", "x": 1}, "bb": {"attempts": 0}}, lease="soon", transport="kafka"))
    assert len(found) == 6
    deeper = problems(
        written(
            {"aa": {"function": "relay", "needs": ["zz"], "lease": "1s"}, "bb": {"function": "f_bb", "needs": ["bb"]}}
        )
    )
    assert len(deeper) == 4


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"pipeline\.yaml: cannot be read \(FileNotFoundError\)"):
        Pipeline.load(tmp_path / "pipeline.yaml")


NAMES = ["a", "b", "c", "d", "e"]


@given(st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(NAMES), max_size=3).map(tuple)))
def test_an_order_has_needs_first_or_names_the_rest(needs: dict[str, tuple[str, ...]]) -> None:
    order, rest = in_order(needs)
    assert sorted(order + rest) == sorted(needs)
    for index, name in enumerate(order):
        assert all(need in order[:index] for need in needs[name] if need in needs)
    for name in rest:
        assert any(need in rest for need in needs[name])
