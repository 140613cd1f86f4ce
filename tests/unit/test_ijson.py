"""I-JSON in, canonical JSON out: golden vectors, refusals, hostile texts (cases 5, 6, 9, 10)."""

import json
import math
from decimal import Decimal
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.errors import InvalidJsonError, JsonTooLargeError
from shared.ijson import MAX_CHECKED_NUMBERS, JsonValue, canonical, parse, pointer

LARGE = 10_000_000


def read(text: str | bytes) -> JsonValue:
    return parse(text.encode() if isinstance(text, str) else text, max_bytes=LARGE)


GOLDEN = [
    ("1", 1, b"1"),
    ("1.0", 1, b"1"),
    ("1e0", 1, b"1"),
    ("100e-2", 1, b"1"),
    ("-0", 0, b"0"),
    ("-0.0", 0, b"0"),
    ("0e999999999999999999", 0, b"0"),
    ("0.1", 0.1, b"0.1"),
    ("0.10", 0.1, b"0.1"),
    ("1e20", 10**20, b"100000000000000000000"),
    ("1E20", 10**20, b"100000000000000000000"),
    ("123456789012345680000", 123456789012345680000, b"123456789012345680000"),
    ("1e21", 1e21, b"1e+21"),
    ("1000000000000000000000", 1e21, b"1e+21"),
    ("1e-6", 1e-6, b"0.000001"),
    ("1e-7", 1e-7, b"1e-7"),
    ("0.0000001", 1e-7, b"1e-7"),
    ("2.561422288066971e+16", 25614222880669710, b"25614222880669710"),
    ("9007199254740991", 9007199254740991, b"9007199254740991"),
    ("9007199254740992", 9007199254740992, b"9007199254740992"),
    ("-9007199254740994", -9007199254740994, b"-9007199254740994"),
    ("5e-324", 5e-324, b"5e-324"),
    ("-5e-324", -5e-324, b"-5e-324"),
    ("1.7976931348623157e308", 1.7976931348623157e308, b"1.7976931348623157e+308"),
    ("333333333.33333329", 333333333.3333333, None),
    ("333333333.3333333", 333333333.3333333, b"333333333.3333333"),
    ("4.5", 4.5, b"4.5"),
    ("2e-3", 0.002, b"0.002"),
    ("true", True, b"true"),
    ("null", None, b"null"),
    (' [ 1 , "a" ] ', [1, "a"], b'[1,"a"]'),
]


@pytest.mark.parametrize(("text", "value", "form"), GOLDEN, ids=[text for text, _, _ in GOLDEN])
def test_case_5_golden_vectors(text: str, value: JsonValue, form: bytes | None) -> None:
    if form is None:  # two spellings of one double: the longer one would lose its last digit
        with pytest.raises(InvalidJsonError):
            read(text)
        return
    found = read(text)
    assert found == value
    assert type(found) is type(value)
    assert canonical(found) == form
    assert read(form) == found


@pytest.mark.parametrize(
    "literal",
    [
        "1234567890123456789",
        "1234567890123456788",
        "0.10000000000000000001",
        "9007199254740993",
        "18446744073709551616",  # a double, but JSON writes it 18446744073709552000
        "1e400",
        "-1e400",
        "1e131072",
        "1e-400",
        "1e-131072",
        "4.9e-324",
        "2e308",
        "1e99999999999999999999999",
        "1e-99999999999999999999999",
        "9" * 5000,
        "-" + "9" * 5000,
        "1" + "0" * 5000,
        "0." + "0" * 5000 + "1",
        "1." + "3" * 5000,
        "1e" + "9" * 5000,
    ],
    ids=lambda literal: literal[:30],
)
def test_cases_6_and_10_numbers_whose_digits_would_change_are_refused(literal: str) -> None:
    with pytest.raises(InvalidJsonError, match="send it as a string") as caught:
        read(f'{{"a":[0,{{"b/c":{literal}}}]}}')
    assert caught.value.pointer == "/a/1/b~1c"
    assert literal not in str(caught.value)


@pytest.mark.parametrize(
    "literal", ["1" + "0" * 300, "1." + "0" * 5000, "0." + "0" * 300 + "1", "0" + "e5", "1e" + "0" * 5000 + "1"]
)
def test_case_6_long_spellings_of_a_double_are_accepted(literal: str) -> None:
    assert Decimal(repr(float(literal))) == Decimal(literal)
    assert read(literal) == float(literal)


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity"])
def test_case_10_not_a_number_is_refused(literal: str) -> None:
    with pytest.raises(InvalidJsonError, match="NaN and Infinity") as caught:
        read(f'{{"a":[{literal}]}}')
    assert caught.value.pointer == "/a/0"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (r'{"a":"\u0000"}', "/a"),
        (r'["x\u0000y"]', "/0"),
        (r'{"a":{"\u0000":1}}', "/a/"),
        (r'"\ud800"', ""),
        (r'["\udc00\ud800"]', "/0"),
        (r'{"\udfff":1}', "/"),
        (r'{"a":"\ud83dx"}', "/a"),
    ],
)
def test_case_9_forbidden_characters_are_refused_wherever_they_are(text: str, where: str) -> None:
    with pytest.raises(InvalidJsonError, match=r"U\+0000|lone surrogate") as caught:
        read(text)
    assert caught.value.pointer == where


@pytest.mark.parametrize(
    ("text", "value"),
    [(r'"\ud83d\ude00"', "😀"), (r'"\\u0000"', r"\u0000"), (r'"\u00e9\/\b"', "é/\b"), (r'"\uffff"', "\uffff")],
)
def test_case_9_other_escapes_survive(text: str, value: str) -> None:
    assert read(text) == value


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a":1,"a":1}', "/a"),
        ('{"x":[{"a":1,"b":2,"a":null}]}', "/x/0/a"),
        (r'{"a":1,"\u0061":2}', "/a"),
        ('{"":1,"":2}', "/"),
    ],
)
def test_a_name_that_occurs_twice_is_refused(text: str, where: str) -> None:
    with pytest.raises(InvalidJsonError, match="twice") as caught:
        read(text)
    assert caught.value.pointer == where


def test_the_first_problem_is_told_with_its_pointer() -> None:
    with pytest.raises(InvalidJsonError) as caught:
        read('{"a":[1,2],"b":1e400,"c":NaN}')
    assert caught.value.pointer == "/b"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"[1,]",
        b'{"a":1,}',
        b"{'a':1}",
        b"[1] x",
        b"[1][2]",
        b"nul",
        b"01",
        b"+1",
        b".5",
        b"1.",
        b"1e",
        b"0x10",
        b"--1",
        b'"a',
        b'"\\x"',
        b'"\\u12"',
        b'"\x01"',
        b'"line\nbreak"',
        b"[1 2]",
        b"\x00",
        b"// x\n1",
        "\u00a01".encode(),
        "[١]".encode(),
    ],
)
def test_what_is_not_json_is_refused_without_quoting_it(data: bytes) -> None:
    with pytest.raises(InvalidJsonError, match=r"^not JSON at line \d+, column \d+$"):
        read(data)


@pytest.mark.parametrize(
    "data", [b"\xff", b'"\xed\xa0\x80"', b'"\xc0\xaf"', b'["ok", "\xe9"]', "1".encode("utf-16"), b'"\xf5\x80\x80\x80"']
)
def test_what_is_not_utf_8_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidJsonError, match="not UTF-8"):
        read(data)


def test_a_byte_order_mark_is_refused() -> None:
    with pytest.raises(InvalidJsonError, match="byte order mark"):
        read(b"\xef\xbb\xbf{}")


def test_the_size_is_told_apart() -> None:
    assert parse(b'"abc"', max_bytes=5) == "abc"
    with pytest.raises(JsonTooLargeError):
        parse(b'"abc"', max_bytes=4)


def test_depth_is_counted_in_arrays_and_objects_outside_of_strings() -> None:
    assert parse(b'[{"a":[]}]', max_bytes=99, max_depth=3) == [{"a": []}]
    assert parse(rb'["[[[[[{{{{\"[[["]', max_bytes=99, max_depth=1) == ['[[[[[{{{{"[[[']
    assert parse(b"[[],[],[],[]]", max_bytes=99, max_depth=2) == [[], [], [], []]
    with pytest.raises(InvalidJsonError, match="deeper than 2"):
        parse(b'[{"a":[]}]', max_bytes=99, max_depth=2)
    with pytest.raises(ValueError, match="max_depth"):
        parse(b"1", max_bytes=99, max_depth=100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 1_000_000,
        b'{"a":' * 200_000,
        b"[" * 1_000_000 + b"]" * 1_000_000,
        b'"' + b'\\"' * 1_000_000,
        b'["' * 500_000,
        b'"[' * 500_000,
        b"\\" * 1_000_000,
        b"[" + b"9" * 1_000_000 + b"]",
        b"[1e" + b"9" * 1_000_000 + b"]",
        b"[0." + b"0" * 1_000_000 + b"1]",
        b"[" + b",".join([b"9" * 5000] * 200) + b"]",
        b'{"' + b"k" * 1_000_000 + b'":1e400}',
        b"{" + b",".join(b'"k%d":1' % i for i in range(100_000)) + b',"k5":1}',
        b"[" + b",".join([rb'"\ud800"'] * 100_000) + b"]",
    ],
    ids=lambda data: repr(data[:8]),
)
def test_case_10_hostile_texts_are_refused_in_bounded_time(data: bytes) -> None:
    with pytest.raises(InvalidJsonError) as caught:
        read(data)
    assert len(caught.value.pointer) <= 200
    assert len(str(caught.value)) < 500


KEYS = '{"\\u20ac":1,"\\r":2,"\\ufb33":3,"1":4,"\\ud83d\\ude00":5,"\\u0080":6,"\\u00f6":7}'


def test_names_are_sorted_as_utf_16() -> None:
    """The example of RFC 8785 §3.2.3: U+1F600 sorts before U+FB33, because its first unit is D83D."""
    names = list(json.loads(canonical(read(KEYS))))
    assert names == ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]


def test_strings_are_escaped_as_rfc_8785_says() -> None:
    value = read(r'"\u20ac$\u000F\u000aA' + r"'\u0042\u0022\u005c\\\"\/\u007f\b\f\t\r" + '"')
    assert canonical(value) == b'"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\\\\\"/\x7f\\b\\f\\t\\r"'


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": float("nan")}, "/a"),
        ([1, float("inf")], "/1"),
        ({"a": [2**53 + 1]}, "/a/0"),
        (10**400, ""),
        (10**100_000, ""),
        ({"a": "\0"}, "/a"),
        ({"a": {"\ud800": 1}}, "/a/"),
        ({1: 2}, ""),
        ({"a": {None: 2}}, "/a"),
        ({"a": b"bytes"}, "/a"),
        ({"a": {1, 2}}, "/a"),
        ([Decimal("1.5")], "/0"),
        (object(), ""),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_case_9_a_value_that_is_not_json_has_no_canonical_form(value: Any, where: str) -> None:
    with pytest.raises(InvalidJsonError) as caught:
        canonical(value)
    assert caught.value.pointer == where


def test_canonical_takes_tuples_and_large_integers_that_are_doubles() -> None:
    assert (
        canonical((1, 2**53, 10**20, -(10**20))) == b"[1,9007199254740992,100000000000000000000,-100000000000000000000]"
    )
    assert canonical(10**300) == b"1e+300"
    assert canonical({"b": True, "a": None}) == b'{"a":null,"b":true}'


def test_canonical_refuses_endless_nesting() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidJsonError, match="deeper"):
        canonical(loop)


def test_a_pointer_is_escaped_and_bounded() -> None:
    assert pointer("/a", "b/c~d") == "/a/b~1c~0d"
    assert pointer("", 3) == "/3"
    assert pointer("", "\0\ud800") == "/"
    assert len(pointer("", "k" * 10_000)) == 200


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4), max_leaves=20
)


@given(VALUES)
def test_what_python_writes_is_read_and_keeps_its_canonical_form(value: Any) -> None:
    found = read(json.dumps(value))
    form = canonical(found)
    assert read(form) == found
    assert canonical(read(form)) == form == canonical(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_double_survives(number: float) -> None:
    found = read(repr(number))
    assert isinstance(found, (int, float))
    assert float(found) == number
    form = canonical(found)
    assert float(form) == number
    plain = "e" not in form.decode() and "." not in form.decode()
    assert isinstance(found, int) == plain
    assert read(form) == found


@given(st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True))
def test_case_6_a_number_is_accepted_exactly_when_its_digits_survive(literal: str) -> None:
    number = float(literal)
    survives = math.isfinite(number) and Decimal(repr(number)) == Decimal(literal)
    try:
        found = read(literal)
    except InvalidJsonError:
        assert not survives
    else:
        assert survives
        assert isinstance(found, (int, float))
        assert Decimal(str(found)) == Decimal(literal)


@given(st.binary(max_size=60) | st.text('{}[]":,0123456789.eE+-\\utrfalsn ', max_size=60).map(str.encode))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        value = read(data)
    except InvalidJsonError:
        return
    assert read(canonical(value)) == value
    assert json.loads(data) == value


def test_a_text_of_very_many_costly_numbers_is_refused_and_points_to_one() -> None:
    fine = b"[" + b",".join([b"1.5"] * MAX_CHECKED_NUMBERS) + b"]"
    assert len(cast("list[float]", parse(fine, max_bytes=10_000_000))) == MAX_CHECKED_NUMBERS
    with pytest.raises(InvalidJsonError, match="more than 50000 numbers"):
        parse(b"[1.5," + fine[1:], max_bytes=10_000_000)
