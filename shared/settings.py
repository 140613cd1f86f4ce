"""Reading groups of settings from an environment, with every problem of every group told at once."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import Annotated, Any, Protocol, Self, TypeVar, overload
from urllib.parse import urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator

from shared import ijson
from shared.durations import duration
from shared.errors import ConfigError, InvalidJsonError

_EMAIL = re.compile(r"[a-z0-9._+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){0,9}")


class Settings(Protocol):
    """A group of settings."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """Read the group; raises ConfigError with every problem of it."""
        ...


class EnvironmentSettings(BaseModel):
    """A group whose fields are the variables of their names in capitals; an empty variable is not set.

    A field's description says what to set it to. Input values are in no error and no repr.
    """

    model_config = ConfigDict(frozen=True, extra="ignore", hide_input_in_errors=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Read the group; raises ConfigError with every problem of it."""
        values = {name: environment.get(name.upper(), "").strip() for name in cls.model_fields}
        given = {name: value for name, value in values.items() if value}
        try:
            return cls.model_validate(given, context={"K_SERVICE": environment.get("K_SERVICE", "")})
        except ValidationError as error:
            found = [_problem(cls, item) for item in error.errors(include_input=False, include_url=False)]
        # pydantic looks between fields only when each is right; whoever must set them wants to know it all.
        raise ConfigError(list(dict.fromkeys(found + cls.problems_between(given.keys()))))

    @classmethod
    def problems_between(cls, given: Collection[str]) -> list[str]:  # noqa: ARG003 - for groups that have any
        """Tell what is wrong with which fields are given; none by default."""
        return []

    @model_validator(mode="after")
    def _between(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if problems := self.problems_between(given):
            raise ValueError(problems[0])
        return self


A = TypeVar("A", bound=Settings)
B = TypeVar("B", bound=Settings)
C = TypeVar("C", bound=Settings)
D = TypeVar("D", bound=Settings)


@overload
def load(a: type[A], /, *, env: Mapping[str, str] = ...) -> tuple[A]: ...
@overload
def load(a: type[A], b: type[B], /, *, env: Mapping[str, str] = ...) -> tuple[A, B]: ...
@overload
def load(a: type[A], b: type[B], c: type[C], /, *, env: Mapping[str, str] = ...) -> tuple[A, B, C]: ...
@overload
def load(a: type[A], b: type[B], c: type[C], d: type[D], /, *, env: Mapping[str, str] = ...) -> tuple[A, B, C, D]: ...
@overload
def load(*groups: type[Settings], env: Mapping[str, str] = ...) -> tuple[Settings, ...]: ...


def load(*groups: type[Settings], env: Mapping[str, str] = os.environ) -> tuple[Settings, ...]:
    """Read several groups of settings, in their order.

    Raises ConfigError that lists the problems of all of them, each with what to do.
    """
    read: list[Settings] = []
    problems: list[str] = []
    for group in groups:
        try:
            read.append(group.from_environment(env))
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return tuple(read)


def http_url(text: str) -> str:
    """Return an http or https URL without its last slash; raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("is not an http or https URL")
    return text.rstrip("/")


def email(text: str) -> str:
    """Return an e-mail address in lower case as it is; raises ValueError for anything else."""
    if not _EMAIL.fullmatch(text):
        raise ValueError("is not an e-mail address in lower case")
    return text


def from_json(text: object) -> object:
    """Read a variable that holds JSON; anything but text is returned as it is. Raises ValueError."""
    if not isinstance(text, str):
        return text
    try:
        return ijson.parse(text.encode(), max_bytes=100_000)
    except (InvalidJsonError, UnicodeEncodeError):
        raise ValueError("is not JSON") from None


def _duration(value: object) -> timedelta:
    return value if isinstance(value, timedelta) else duration(value)


Duration = Annotated[timedelta, BeforeValidator(_duration)]  # in the environment a text like 40s, 10m or 1h30m


def on_cloud_run(info: ValidationInfo) -> bool:
    """Whether the settings being validated are those of a deployed function, which has K_SERVICE."""
    source: Mapping[str, str] = os.environ if info.context is None else info.context
    return bool(source.get("K_SERVICE"))


def _problem(group: type[BaseModel], item: Mapping[str, Any]) -> str:
    """Write one of pydantic's findings as `VARIABLE: what is wrong; what to set it to`."""
    own = item["type"] == "value_error"
    if own and not item["loc"]:
        return str(item["ctx"]["error"])
    name = str(item["loc"][0])
    wrong = "is not set" if item["type"] == "missing" else item["ctx"]["error"] if own else item["msg"]
    return f"{name.upper()}: {wrong}; set it to {group.model_fields[name].description}"
