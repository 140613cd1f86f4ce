"""Field types of the operations' inputs, and the rule for telling a caller what is wrong with one."""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from shared.addresses import is_email
from shared.errors import InvalidInputError

MAX_PENCE = 2**53 - 1  # the largest integer that every JSON reader keeps exact (RFC 7493)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,6})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_UNPRINTABLE = {"Cc", "Cs", "Zl", "Zp"}  # controls, lone surrogates, line and paragraph separators
_BIDI_CONTROLS = set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")  # can make a line read otherwise
_FIELD_NAME = re.compile(r"[a-z_]{1,40}", re.ASCII)
_RULES = {
    "extra_forbidden": "is not a known field",
    "model_type": "must be an object",
    "string_pattern_mismatch": "must be letters, digits and . _ / -, at most 64",
}
_EARLIEST, _LATEST = 1900, 2199  # years; keeps every date far from the edges of all date types on the way


class Strict(BaseModel):
    """A frozen part of an input: exact types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True)


def _printable(text: str) -> str:
    if any(unicodedata.category(c) in _UNPRINTABLE or c in _BIDI_CONTROLS for c in text):
        raise PydanticCustomError("unprintable", "must not contain control characters")
    return text


def _not_blank(text: str) -> str:
    if not text.strip():
        raise PydanticCustomError("blank", "must not be blank")
    return text


def _email(text: str) -> str:
    if not is_email(text):
        raise PydanticCustomError("email", "must be a plain e-mail address")
    return text


def _timestamp(value: Any) -> datetime:
    if not isinstance(value, str) or not _RFC3339.fullmatch(value):
        raise PydanticCustomError("timestamp", "must be an RFC 3339 time with an offset")
    try:
        moment = datetime.fromisoformat(value.upper())
    except ValueError:
        raise PydanticCustomError("timestamp", "must be a time that exists") from None
    _check_year(moment.year)
    return moment


def _day(value: Any) -> date:
    if not isinstance(value, str) or not _DATE.fullmatch(value):
        raise PydanticCustomError("date", "must be a date as YYYY-MM-DD")
    try:
        day = date.fromisoformat(value)
    except ValueError:
        raise PydanticCustomError("date", "must be a date that exists") from None
    _check_year(day.year)
    return day


def _check_year(year: int) -> None:
    if not _EARLIEST <= year <= _LATEST:
        raise PydanticCustomError("year", f"must be a year from {_EARLIEST} to {_LATEST}")


Reference = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,63}\z")]
Text = Annotated[str, AfterValidator(_printable)]
Title = Annotated[Text, Field(min_length=1), AfterValidator(_not_blank)]
Email = Annotated[str, AfterValidator(_email)]
Timestamp = Annotated[datetime, BeforeValidator(_timestamp)]
Day = Annotated[date, BeforeValidator(_day)]

Model = TypeVar("Model", bound=Strict)


def read(model: type[Model], data: Any) -> Model:
    """Read an input strictly.

    Raises InvalidInputError that names each wrong field (at most five) and the rule, never a value.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)
    problems = [f"{_place(problem['loc'])}: {_rule(problem)}" for problem in found]
    more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
    raise InvalidInputError("; ".join(problems[:5]) + more)


def _place(location: tuple[int | str, ...]) -> str:
    """Write a location as a path; what does not look like a field's name may be a value and is not shown."""
    return ".".join(["input", *(_part(part) for part in location)])


def _part(part: int | str) -> str:
    return str(part) if isinstance(part, int) or _FIELD_NAME.fullmatch(part) else "(unknown field)"


def _rule(problem: Any) -> str:
    if problem["type"] in _RULES:
        return _RULES[problem["type"]]
    message: str = problem["msg"]
    return message[0].lower() + message[1:]
