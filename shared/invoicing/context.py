"""What a step's handler sees of the pipeline."""

# ruff: noqa: D102 - the docstring of StepContext describes its members together

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from shared.providers import Provider

Result: TypeAlias = dict[str, Any]


class Queries(Protocol):
    """Runs named queries of `shared/queries`; rows are read by attribute."""

    def run(self, name: str, /, **params: Any) -> Sequence[Any]:
        """Run one named query and return its rows."""
        ...


class StepContext(Protocol):
    """One attempt at one step.

    `transaction()` opens, once, the transaction in which the step is settled: rows written there commit
    together with the step's completion, or not at all. `database` runs reads in statements of their own. `results`
    holds the results of the steps that this one needs, by name. `accepted_at` is the database's time of
    acceptance.
    """

    @property
    def operation_id(self) -> UUID: ...
    @property
    def tenant(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def key(self) -> str: ...
    @property
    def step(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def input(self) -> Mapping[str, Any]: ...
    @property
    def results(self) -> Mapping[str, Result]: ...
    @property
    def accepted_at(self) -> datetime: ...
    @property
    def database(self) -> Queries: ...
    def effect(self, name: str, provider: Provider, request: Any) -> Result: ...
    def transaction(self) -> Queries: ...
