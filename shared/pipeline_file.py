"""Reading and checking `pipeline.yaml`: every problem at once, each as `file: key: problem`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml
from pydantic import ValidationError

from shared import pipeline_schema as schema
from shared.errors import ConfigError
from shared.pipeline import (
    Backoff,
    Limits,
    Operation,
    Pacing,
    Pipeline,
    Retention,
    Sensitive,
    Step,
    freeze,
    in_order,
)

_RESERVED = frozenset({"intake", "relay", "dead_letter", "reconcile", "console", "migrate", "delayed"})

# INFRA: function timeout < ack deadline ≤ 600 s for a push, with 30 s between; < dispatch deadline ≤ 1,800 s
# for Cloud Tasks.
_LONGEST = {"pubsub": timedelta(seconds=570), "tasks": timedelta(seconds=1770)}
_LONGEST_BACKOFF = timedelta(days=1)
MESSAGES_KEPT = timedelta(days=7)  # how long Pub/Sub keeps a message that nobody acknowledges
REPLAY_WINDOW = timedelta(days=30)  # how late a task (720 h ahead at most) or a caller's own replay may come


class PipelineError(ConfigError):
    """The pipeline file is not usable."""


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that occurs twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                raise yaml.MarkedYAMLError(problem=f"the key {key} occurs twice", problem_mark=key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def read(path: Path) -> Pipeline:
    """Read and check a pipeline file; raises PipelineError with every problem."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise PipelineError([f"{path}: cannot be read ({type(error).__name__})"]) from None
    return parse(text, str(path))


def parse(text: str, file: str = "pipeline.yaml") -> Pipeline:
    """Check the text of a pipeline file, called `file` in problems; raises PipelineError with all of them."""
    raw = _from_yaml(text, file)
    try:
        checked = schema.File.model_validate(raw)
    except ValidationError as error:
        raise PipelineError([f"{file}: {_key(item['loc'])}: {_say(item)}" for item in error.errors()]) from None
    operations = {type_: _steps(type_, operation, checked.defaults) for type_, operation in checked.operations.items()}
    problems = [problem for steps in operations.values() for problem in _step_problems(steps)]
    problems += _function_problems([step for steps in operations.values() for step in steps.values()])
    problems += _retention_problems(checked.retention)
    if problems:
        raise PipelineError([f"{file}: {problem}" for problem in problems])
    return _frozen(checked, operations)


def _frozen(checked: schema.File, operations: Mapping[str, Mapping[str, Step]]) -> Pipeline:
    kept = checked.retention
    return freeze(
        {
            type_: Operation(
                type_,
                MappingProxyType(_sorted(steps)),
                checked.operations[type_].ordering.review == "go_on",
                _sensitive(checked.operations[type_].sensitive),
            )
            for type_, steps in operations.items()
        },
        Limits(checked.limits.in_flight_per_tenant),
        Retention(kept.operations, kept.identities) if kept else None,
    )


def _sensitive(marked: schema.Sensitive) -> Sensitive:
    return Sensitive(tuple(marked.input), tuple(marked.results))


def _from_yaml(text: str, file: str) -> object:
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 0
        raise PipelineError([f"{file}: line {line}: {error.problem}"]) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise PipelineError([f"{file}: is not YAML ({type(error).__name__})"]) from None


def _key(location: tuple[int | str, ...]) -> str:
    """Write pydantic's location as the file spells it."""
    return ".".join(str(part) for part in location if part != "[key]") or "(the whole file)"


def _say(item: Mapping[str, Any]) -> str:
    """Put pydantic's finding into the words of the file."""
    match item["type"]:
        case "extra_forbidden":
            return "unknown key"
        case "missing":
            return "is missing"
        case "value_error":
            return str(item["ctx"]["error"])
        case "string_pattern_mismatch":
            return "must be lower-case words of letters and digits, joined by single underscores"
        case _:
            return str(item["msg"])


def _steps(type_: str, operation: schema.Operation, defaults: schema.Defaults) -> dict[str, Step]:
    steps = {}
    for name, raw in operation.steps.items():
        own = {key: getattr(raw, key) for key in schema.Defaults.model_fields if getattr(raw, key) is not None}
        merged = {key: getattr(defaults, key) for key in schema.Defaults.model_fields} | own
        steps[name] = Step(
            name=name,
            type=type_,
            function=raw.function,
            needs=tuple(raw.needs),
            providers=tuple(raw.providers),
            pacing=Pacing(raw.pacing.per_second, raw.pacing.concurrent) if raw.pacing else None,
            **merged
            | {
                "backoff": Backoff(merged["backoff"].min, merged["backoff"].max),
                "permanent": tuple(merged["permanent"]),
            },
        )
    return steps


def _sorted(steps: Mapping[str, Step]) -> dict[str, Step]:
    order, _ = in_order({name: step.needs for name, step in steps.items()})
    return {name: steps[name] for name in order}


def _step_problems(steps: Mapping[str, Step]) -> Iterator[str]:
    """Find what is wrong with each step of one type, and between them."""
    for step in steps.values():
        key = f"operations.{step.type}.steps.{step.name}"
        yield from (f"{key}.needs: {name}: no such step" for name in step.needs if name not in steps)
        if len(set(step.needs)) < len(step.needs):
            yield f"{key}.needs: a name occurs twice"
        yield from (f"{key}.{problem}" for problem in _timing_problems(step))
        if step.pacing and step.transport != "tasks":
            yield f"{key}.pacing: needs transport tasks (a push cannot be paced)"
        if step.pacing and step.pacing == Pacing():
            yield f"{key}.pacing: needs per_second, concurrent or both"
        if step.function in _RESERVED:
            yield f"{key}.function: {step.function} is a function of the platform"
    _, cyclic = in_order({name: step.needs for name, step in steps.items()})
    if cyclic:
        yield f"operations.{next(iter(steps.values())).type}.steps: in or behind a cycle: {', '.join(cyclic)}"


def _timing_problems(step: Step) -> Iterator[str]:
    if step.lease <= step.timeout:
        yield f"lease: must be longer than timeout ({_seconds(step.timeout)})"
    if step.timeout > _LONGEST[step.transport]:
        yield f"timeout: at most {_seconds(_LONGEST[step.transport])} with transport {step.transport}"
    if step.timeout < timedelta(seconds=1):
        yield "timeout: at least 1s"
    if step.backoff.min > step.backoff.max:
        yield "backoff: min must not be longer than max"
    if step.backoff.max > _LONGEST_BACKOFF:
        yield f"backoff.max: at most {_seconds(_LONGEST_BACKOFF)}"
    if step.deadline is not None and step.deadline <= step.timeout:
        yield f"deadline: must be longer than timeout ({_seconds(step.timeout)})"


def _retention_problems(kept: schema.Retention | None) -> Iterator[str]:
    """Find identities that a late message or a replay could outlive: it would become a new operation."""
    if kept and kept.identities < kept.operations + MESSAGES_KEPT + REPLAY_WINDOW:
        least = kept.operations + MESSAGES_KEPT + REPLAY_WINDOW
        yield (
            f"retention.identities: at least {least.days + bool(least.seconds)}d with operations "
            f"{_seconds(kept.operations)}: messages live for {MESSAGES_KEPT.days} days more, "
            f"replays come up to {REPLAY_WINDOW.days} days late"
        )


def _function_problems(steps: list[Step]) -> Iterator[str]:
    """Find steps of one function, so of one topic, subscription and queue, whose delivery differs."""
    first: dict[str, Step] = {}
    for step in steps:
        other = first.setdefault(step.function, step)
        for field in ("transport", "timeout", "pacing"):
            if getattr(step, field) != getattr(other, field):
                yield (
                    f"operations.{step.type}.steps.{step.name}.{field}: "
                    f"must be as in {other.type}.{other.name}, which has the same function"
                )


def _seconds(span: timedelta) -> str:
    return f"{span.total_seconds():g}s"
