"""What `pipeline.yaml` says: operation types, their steps, and how each step is delivered and retried.

Everything here is immutable and validated (`shared.pipeline_file` does that); all times are timedeltas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from shared.errors import NotFoundError

Transport = Literal["pubsub", "tasks"]


class UnknownTypeError(NotFoundError):
    """The pipeline has no such operation type."""


class UnknownStepError(NotFoundError):
    """The operation type has no such step."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """The bounds of the random wait before the next attempt; 0 < min ≤ max."""

    min: timedelta
    max: timedelta


@dataclass(frozen=True, slots=True)
class Pacing:
    """How fast Cloud Tasks may call a step; None means without this bound."""

    per_second: float | None = None
    concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an operation type.

    `deadline` counts from the first time that the step was due. `permanent` names exception classes that fail the step
    at once. `providers` are those whose pause or open circuit holds the step back.
    """

    name: str
    type: str
    function: str
    needs: tuple[str, ...]
    transport: Transport
    attempts: int
    backoff: Backoff
    lease: timedelta
    timeout: timedelta
    max_waits: int
    pacing: Pacing | None = None
    deadline: timedelta | None = None
    permanent: tuple[str, ...] = ()
    providers: tuple[str, ...] = ()

    @property
    def topic(self) -> str:
        """The name of its Pub/Sub topic, Cloud Function and queue: `invoice_record` → `invoice-record`."""
        return self.function.replace("_", "-")


@dataclass(frozen=True, slots=True)
class Sensitive:
    """Paths (`customer.email`, `lines.*.text`) of what no operator is shown, in the input and in steps' results."""

    input: tuple[str, ...] = ()
    results: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation type; `steps` is in topological order, needs before what needs them.

    `goes_on_in_review`: one that needs a review does not hold its ordering key meanwhile.
    """

    type: str
    steps: Mapping[str, Step]
    goes_on_in_review: bool = False
    sensitive: Sensitive = Sensitive()

    @property
    def first_steps(self) -> tuple[Step, ...]:
        """The steps that need no other; there is always one."""
        return tuple(step for step in self.steps.values() if not step.needs)

    def children_of(self, step: Step | str) -> tuple[Step, ...]:
        """Return the steps that need this one directly."""
        name = step if isinstance(step, str) else step.name
        return tuple(child for child in self.steps.values() if name in child.needs)


@dataclass(frozen=True, slots=True)
class Limits:
    """What one tenant may have under way at once; None means without this bound."""

    in_flight_per_tenant: int | None = None


@dataclass(frozen=True, slots=True)
class Retention:
    """How long the records of finished operations and, longer, their identities are kept."""

    operations: timedelta
    identities: timedelta


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Every operation type, and what holds for all of them; without a retention everything is kept."""

    operations: Mapping[str, Operation]
    limits: Limits = Limits()
    retention: Retention | None = None

    @classmethod
    def load(cls, path: Path | str) -> Pipeline:
        """Read and check a pipeline file.

        Raises PipelineError, a ConfigError that lists every problem as `file: key: problem`.
        """
        from shared.pipeline_file import read  # pydantic and YAML, needed only here

        return read(Path(path))

    def operation(self, type: str) -> Operation:  # noqa: A002 - DESIGN's word
        """Return an operation type; raises UnknownTypeError."""
        found = self.operations.get(type)
        if found is None:
            raise UnknownTypeError
        return found

    def step(self, type: str, name: str) -> Step:  # noqa: A002 - DESIGN's word
        """Return one step; raises UnknownTypeError or UnknownStepError."""
        found = self.operation(type).steps.get(name)
        if found is None:
            raise UnknownStepError
        return found

    @property
    def steps(self) -> tuple[Step, ...]:
        """Every step of every type."""
        return tuple(step for operation in self.operations.values() for step in operation.steps.values())

    @property
    def going_on_in_review(self) -> list[str]:
        """The types of which one that needs a review does not hold its ordering key."""
        return [operation.type for operation in self.operations.values() if operation.goes_on_in_review]

    @property
    def functions(self) -> tuple[str, ...]:
        """The name of every step function, once, in the order of the file."""
        return tuple(dict.fromkeys(step.function for step in self.steps))

    def steps_of(self, function: str) -> tuple[Step, ...]:
        """Return the steps that a function runs; empty when it runs none."""
        return tuple(step for step in self.steps if step.function == function)


def in_order(needs: Mapping[str, tuple[str, ...]]) -> tuple[list[str], list[str]]:
    """Sort names so that each comes after what it needs, else keeping their order.

    Returns the sorted names, and the names that are on a cycle or behind one. Needs that are no name are
    ignored.
    """
    left = dict(needs)
    done: list[str] = []
    while ready := next(_ready(left), None):
        done.append(ready)
        del left[ready]
    return done, list(left)


def _ready(left: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    return (name for name, needed in left.items() if not any(other in left for other in needed))


def freeze(
    operations: Mapping[str, Operation], limits: Limits = Limits(), retention: Retention | None = None
) -> Pipeline:
    """Make a Pipeline of operation types that were checked before, with their steps in topological order."""
    return Pipeline(MappingProxyType(dict(operations)), limits, retention)
