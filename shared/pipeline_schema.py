"""The shape of `pipeline.yaml`: its keys, their kinds and bounds. What must agree between keys is checked elsewhere."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from shared.durations import duration
from shared.pipeline import Transport

# A function's name becomes a folder, a topic, a Cloud Function (with hyphens) and, behind a prefix, the id of
# a service account, which has at most 30 characters.
_WORD = r"[a-z][a-z0-9]*(_[a-z0-9]+)*"
_TYPE = rf"^{_WORD}(\.{_WORD})*$"

_Duration = Annotated[timedelta, BeforeValidator(duration)]
_Name = Annotated[str, StringConstraints(pattern=f"^{_WORD}$", min_length=2, max_length=40)]
_Function = Annotated[str, StringConstraints(pattern=f"^{_WORD}$", min_length=3, max_length=25)]
_Error = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
_Type = Annotated[str, StringConstraints(pattern=_TYPE, max_length=100)]
_MemberPath = Annotated[str, StringConstraints(pattern=r"^[^.\s]+(\.[^.\s]+)*$", max_length=200)]


class Strict(BaseModel):
    """A mapping of the file: no key but its own, no value of another kind."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Backoff(Strict):
    """`backoff` of the defaults or a step."""

    min: _Duration
    max: _Duration


class Pacing(Strict):
    """`pacing` of a step."""

    per_second: Annotated[float, Field(gt=0, le=500)] | None = None  # Cloud Tasks' own maximum
    concurrent: Annotated[int, Field(gt=0, le=5000)] | None = None  # Cloud Tasks' own maximum


class Defaults(Strict):
    """`defaults`: what every step has unless its own entry says otherwise."""

    transport: Transport
    attempts: Annotated[int, Field(ge=1, le=100)]
    backoff: Backoff
    lease: _Duration
    timeout: _Duration
    max_waits: Annotated[int, Field(ge=0, le=1000)]
    deadline: _Duration | None = None
    permanent: list[_Error] = []


class Step(Strict):
    """An entry of `steps`; None means as in the defaults."""

    function: _Function
    needs: list[_Name] = []
    transport: Transport | None = None
    attempts: Annotated[int, Field(ge=1, le=100)] | None = None
    backoff: Backoff | None = None
    lease: _Duration | None = None
    timeout: _Duration | None = None
    max_waits: Annotated[int, Field(ge=0, le=1000)] | None = None
    deadline: _Duration | None = None
    permanent: list[_Error] | None = None
    providers: list[_Name] = []
    pacing: Pacing | None = None


class Ordering(Strict):
    """`ordering` of a type."""

    review: Literal["wait", "go_on"] = "wait"


class Sensitive(Strict):
    """`sensitive` of a type."""

    input: list[_MemberPath] = []
    results: list[_MemberPath] = []


class Operation(Strict):
    """An entry of `operations`."""

    ordering: Ordering = Ordering()
    sensitive: Sensitive = Sensitive()
    steps: Annotated[dict[_Name, Step], Field(min_length=1)]


class Limits(Strict):
    """`limits`."""

    in_flight_per_tenant: Annotated[int, Field(ge=1, le=10_000)] | None = None  # counted at each acceptance


class Retention(Strict):
    """`retention`."""

    operations: _Duration
    identities: _Duration


class File(Strict):
    """The whole file."""

    version: Literal[1]
    limits: Limits = Limits()
    retention: Retention | None = None
    defaults: Defaults
    operations: Annotated[dict[_Type, Operation], Field(min_length=1)]
