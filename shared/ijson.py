"""I-JSON (RFC 7493) in, canonical JSON (RFC 8785) out, and no digit changed on the way.

A number is accepted when its decimal digits are those of the shortest spelling of the double nearest to it:
then every JSON library, PostgreSQL's jsonb and the canonical form agree on it. Anything else must be sent
as a string.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import rfc8785

from shared.decimals import exact_number
from shared.errors import InvalidJsonError, JsonTooLargeError, sanitise

JsonValue: TypeAlias = "bool | int | float | str | list[JsonValue] | dict[str, JsonValue] | None"
# Where a walk is: the path of the parent and the last name. Spelled out only when something is refused there.
_Path: TypeAlias = "tuple[_Path, str | int] | None"

MAX_DEPTH = 32  # business input is rarely nested deeper than ten; far below any interpreter's recursion limit
# Each of these is checked digit by digit and written anew in its canonical form: some ten microseconds a number.
MAX_CHECKED_NUMBERS = 50_000
_DEPTH_CEILING = 200  # what a caller may ask for: the C scanner and the walk below recurse once a level
_CANONICAL_DEPTH = 64  # a parsed input wrapped in objects of our own
_POINTER_LIMIT = 200  # characters of a pointer that are told back to a caller
_EXACT_INT = 2**53 - 1  # the largest integer that the rfc8785 library takes as an int

# A string, closed or not: possessive, and it always matches from a quote on, so linear on any text.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_OPEN = ord("[")
_SHAPE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKET = bytes(set(range(256)) - set(b"[]{}"))
# Only an escape can bring in U+0000 or a lone surrogate, and only a long run of digits an unsafe integer. Both
# may match in vain (in a string, in a pair of surrogates), which costs time only.
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_LONG_INTEGER = re.compile(r"[0-9]{16}")
_FORBIDDEN_CHARACTER = re.compile("[\x00\ud800-\udfff]")
_AS_STRING = "this number does not survive a round trip through a double; send it as a string"
_TOO_DEEP = f"nested deeper than {_CANONICAL_DEPTH} levels"


class _Refusal(NamedTuple):
    """Stands in the parsed tree for what was refused there, until the walk has found its pointer."""

    detail: str
    name: str | None = None


def parse(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH) -> JsonValue:
    """Read one I-JSON text of at most `max_bytes` bytes and `max_depth` nested arrays and objects.

    Refuses what RFC 7493 refuses (a second name, lone surrogates, not UTF-8, a byte order mark), U+0000, NaN
    and Infinity, and numbers that a double cannot hold digit for digit. Integral numbers come back as int
    when their canonical form is plain digits, so that `parse(canonical(parse(x))) == parse(x)`. Takes linear
    time. Raises JsonTooLargeError for the size, InvalidJsonError for the rest.
    """
    if not 0 < max_depth <= _DEPTH_CEILING:
        raise ValueError(f"max_depth must be 1 to {_DEPTH_CEILING}")
    if len(data) > max_bytes:
        raise JsonTooLargeError(f"the text is larger than {max_bytes} bytes")
    text = _decode(data)
    check_depth(data, max_depth)
    value, refused = _load(text)
    if (refused or _SUSPECT_ESCAPE.search(text)) and (problem := _problem(value, None)):
        raise problem
    return value


def canonical(value: Any) -> bytes:
    """Write a value as RFC 8785 canonical JSON.

    Takes what JSON knows (None, bool, int, float, str, list, tuple, dict with str keys). Raises
    InvalidJsonError for any other type, for content that `parse` would refuse, and beyond 64 nested levels.
    """
    return rfc8785.dumps(_canonical_ready(value, None, _CANONICAL_DEPTH))


def check_depth(data: bytes, max_depth: int) -> None:
    """Raise InvalidJsonError when brackets are nested deeper than `max_depth`; linear on any text."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return
    brackets = _STRING.sub(b"", data).translate(_SHAPE, _NO_BRACKET)
    left = brackets
    for _ in range(max_depth):  # each round takes away the innermost pairs, so one level
        left = left.replace(b"[]", b"")
        if not left:
            return
    # Nested deeper, or not balanced and so no JSON: the count tells which.
    depth = 0
    for bracket in brackets:
        depth += 1 if bracket == _OPEN else -1
        if depth > max_depth:
            raise InvalidJsonError(f"nested deeper than {max_depth} levels")


def pointer(parent: str, name: str | int) -> str:
    """Append a name or an index to an RFC 6901 pointer, made safe to show and bounded in length."""
    token = str(name).replace("~", "~0").replace("/", "~1")
    return sanitise(f"{parent}/{token}", _POINTER_LIMIT)


def _decode(data: bytes) -> str:
    if data.startswith(b"\xef\xbb\xbf"):
        raise InvalidJsonError("a byte order mark is not allowed")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidJsonError(f"not UTF-8 at byte {error.start}") from None


def _load(text: str) -> tuple[JsonValue, bool]:
    """Parse with hooks that leave a _Refusal where they refuse; say whether any did."""
    refusals: list[_Refusal] = []

    def refuse(detail: str, name: str | None = None) -> Any:
        refusals.append(_Refusal(detail, name))
        return refusals[-1]

    checked = itertools.count(1)

    def number(literal: str) -> Any:
        if next(checked) > MAX_CHECKED_NUMBERS and not refusals:
            return refuse(f"more than {MAX_CHECKED_NUMBERS} numbers with a fraction, an exponent or many digits")
        return _number(literal, refusals)

    try:
        value = json.loads(
            text,
            object_pairs_hook=lambda pairs: _object(pairs, refuse),
            parse_constant=lambda _: refuse("NaN and Infinity are not JSON"),
            parse_float=number,
            parse_int=number if _LONG_INTEGER.search(text) else None,
        )
    except json.JSONDecodeError as error:
        raise InvalidJsonError(f"not JSON at line {error.lineno}, column {error.colno}") from None
    return value, bool(refusals)


def _object(pairs: list[tuple[str, Any]], refuse: Callable[[str, str], Any]) -> Any:
    value = dict(pairs)
    if len(value) == len(pairs):
        return value
    seen: set[str] = set()
    for name, _ in pairs:
        if name in seen:
            return refuse("this name occurs twice in its object", name)
        seen.add(name)
    raise AssertionError("fewer members than pairs, yet no name twice")


def _number(literal: str, refusals: list[_Refusal]) -> Any:
    if refusals:  # one is enough, and the rest of a hostile text costs less
        return 0
    number = exact_number(literal)
    if number is None:
        refusals.append(_Refusal(_AS_STRING))
        return refusals[-1]
    return number


def _problem(value: Any, path: _Path) -> InvalidJsonError | None:
    """Find the first thing that was refused, in document order, with its pointer."""
    found = None
    if isinstance(value, _Refusal):
        at = path if value.name is None else (path, value.name)
        found = InvalidJsonError(value.detail, _pointer_to(at))
    elif isinstance(value, str):
        if detail := _text_problem(value):
            found = InvalidJsonError(detail, _pointer_to(path))
    elif isinstance(value, list):
        found = _first(_problem(item, (path, index)) for index, item in enumerate(value))
    elif isinstance(value, dict):
        found = _first(_member_problem(name, item, path) for name, item in value.items())
    return found


def _member_problem(name: str, item: Any, path: _Path) -> InvalidJsonError | None:
    if detail := _text_problem(name):
        return InvalidJsonError(f"in a name: {detail}", _pointer_to((path, name)))
    return _problem(item, (path, name))


def _first(problems: Iterable[InvalidJsonError | None]) -> InvalidJsonError | None:
    return next((problem for problem in problems if problem is not None), None)


def _text_problem(text: str) -> str | None:
    match = _FORBIDDEN_CHARACTER.search(text)
    if match is None:
        return None
    return "U+0000 is not allowed" if match[0] == "\0" else "a lone surrogate is not allowed"


def _canonical_ready(value: Any, path: _Path, levels: int) -> Any:
    """Check a value, and turn it into what the rfc8785 library takes: no int beyond 2**53."""
    if isinstance(value, str):
        _refuse_if(_text_problem(value), path)
    elif isinstance(value, dict):
        _refuse_if(_TOO_DEEP if levels == 0 else None, None)
        return {_name(key, path): _canonical_ready(item, (path, key), levels - 1) for key, item in value.items()}
    elif isinstance(value, (list, tuple)):
        _refuse_if(_TOO_DEEP if levels == 0 else None, None)
        return [_canonical_ready(item, (path, index), levels - 1) for index, item in enumerate(value)]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return _canonical_number(value, path)
    elif value is not None and not isinstance(value, bool):
        _refuse_if(f"a {type(value).__name__} is not a JSON value", path)
    return value


def _canonical_number(value: int | float, path: _Path) -> int | float:
    if isinstance(value, float):
        _refuse_if(None if math.isfinite(value) else "NaN and Infinity are not JSON", path)
        return value
    if -_EXACT_INT <= value <= _EXACT_INT:
        return value
    # 2**1024 and beyond is no double, and str() of a huge int is slow or refused.
    if value.bit_length() > 1024 or exact_number(str(value)) is None:
        _refuse_if(_AS_STRING, path)
    return float(value)


def _name(key: Any, path: _Path) -> str:
    if not isinstance(key, str):
        raise InvalidJsonError("the names of an object must be strings", _pointer_to(path))
    if problem := _text_problem(key):
        raise InvalidJsonError(f"in a name: {problem}", _pointer_to((path, key)))
    return key


def _refuse_if(problem: str | None, path: _Path) -> None:
    if problem is not None:
        raise InvalidJsonError(problem, _pointer_to(path))


def _pointer_to(path: _Path) -> str:
    """Write a path as a pointer, outermost name first."""
    names: list[str | int] = []
    while path is not None:
        path, name = path
        names.append(name)
    where = ""
    for name in reversed(names):
        where = pointer(where, name)
    return where
