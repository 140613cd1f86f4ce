"""Fingerprints and what makes two requests differ (cases 3–7)."""

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared import identity, ijson
from shared.identity import FingerprintVersionError, Options, Request, differing_fields, fingerprint, rfc3339

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
LINES = {"lines": [{"sku": "A", "quantity": 1}, {"sku": "B", "quantity": 2}], "note": None}


def request(given: dict[str, Any], **options: Any) -> Request:
    return Request("invoice.generate", given, Options(**options))


def posted(text: str) -> dict[str, Any]:
    value = ijson.parse(text.encode(), max_bytes=10_000)
    assert isinstance(value, dict)
    return value


def test_version_1_never_changes() -> None:
    """Stored with operations: if this test fails, add a version instead."""
    recorded = request(
        {"total": 1e21, "tiny": 1e-7, "name": "é", "lines": [1, None, True]},
        not_before=NOON,
        deadline=NOON + timedelta(days=1, microseconds=1),
        ordering_key="customer-7",
    )
    document = (
        '{"input":{"lines":[1,null,true],"name":"é","tiny":1e-7,"total":1e+21},'
        '"options":{"deadline":"2026-02-01T12:00:00.000001Z","not_before":"2026-01-31T12:00:00.000000Z",'
        '"ordering_key":"customer-7"},"type":"invoice.generate"}'
    )
    assert fingerprint(recorded, 1) == hashlib.sha256(document.encode()).digest()
    assert fingerprint(request({}), 1).hex() == (
        hashlib.sha256(b'{"input":{},"options":{},"type":"invoice.generate"}').hexdigest()
    )


def test_every_version_up_to_the_current_is_computable() -> None:
    assert sorted(identity.FINGERPRINT_RULES) == list(range(1, identity.FINGERPRINT_VERSION + 1))
    assert len(fingerprint(request({}))) == 32
    with pytest.raises(FingerprintVersionError, match="version 99"):
        fingerprint(request({}), 99)


@pytest.mark.parametrize("number", ["1.0", "1", "1e20", "1e-7", "2.561422288066971e+16", "-0", "0.1", "1e21"])
def test_case_5_a_number_keeps_its_fingerprint_through_a_database(number: str) -> None:
    """PostgreSQL's jsonb writes a number without exponent; a plain JSON library reads it as int or float."""
    first = request(posted(f'{{"n":{number}}}'))
    plain = format(Decimal(number), "f")
    for again in (number, plain):
        assert fingerprint(request(json.loads(f'{{"n":{again}}}'))) == fingerprint(first)
        assert fingerprint(request(posted(f'{{"n":{again}}}'))) == fingerprint(first)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"a":{"x":1,"y":{"p":1,"q":2}},"b":2}', '{"b":2,"a":{"y":{"q":2,"p":1},"x":1}}'),
        ('{"n":1}', '{"n":1.0}'),
        (r'{"n":"\u00e9"}', '{"n":"é"}'),
    ],
)
def test_case_7_the_same_request_spelled_differently_is_a_duplicate(one: str, other: str) -> None:
    assert fingerprint(request(posted(one))) == fingerprint(request(posted(other)))
    assert differing_fields(request(posted(one)), request(posted(other))) == []


@pytest.mark.parametrize(
    ("one", "other", "names"),
    [
        ('{"a":1}', '{"a":1,"b":2}', ["/input/b"]),
        ('{"a":{"x":1}}', '{"a":{"x":1,"y":2}}', ["/input/a"]),
        ('{"a":null}', "{}", ["/input/a"]),
        ('{"a":[1,2]}', '{"a":[2,1]}', ["/input/a"]),
        ('{"a":1}', '{"a":true}', ["/input/a"]),
        ('{"a":0}', '{"a":false}', ["/input/a"]),
        ('{"a":1}', '{"a":"1"}', ["/input/a"]),
        ('{"a":""}', '{"a":null}', ["/input/a"]),
        ('{"a":[]}', '{"a":{}}', ["/input/a"]),
        ('{"a":"e\\u0301"}', '{"a":"é"}', ["/input/a"]),
        ('{"a":1,"b":1}', '{"a":2,"c":1}', ["/input/a", "/input/b", "/input/c"]),
        ('{"x/y":1}', '{"x/y":2}', ["/input/x~1y"]),
    ],
)
def test_case_7_a_different_request_differs_in_both_orders(one: str, other: str, names: list[str]) -> None:
    ours, theirs = request(posted(one)), request(posted(other))
    assert fingerprint(ours) != fingerprint(theirs)
    assert differing_fields(ours, theirs) == differing_fields(theirs, ours) == names


def test_case_3_another_type_differs() -> None:
    ours, theirs = Request("invoice.generate", {}), Request("report.generate", {})
    assert fingerprint(ours) != fingerprint(theirs)
    assert differing_fields(ours, theirs) == ["/type"]


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"deadline": NOON}, ["/deadline"]),
        ({"not_before": NOON}, ["/not_before"]),
        ({"ordering_key": "k"}, ["/ordering_key"]),
        ({"not_before": NOON, "deadline": NOON}, ["/deadline", "/not_before"]),
    ],
)
def test_options_are_part_of_the_request(options: dict[str, Any], names: list[str]) -> None:
    assert fingerprint(request(LINES)) != fingerprint(request(LINES, **options))
    assert differing_fields(request(LINES), request(LINES, **options)) == names


def test_an_option_is_not_an_input_of_the_same_name() -> None:
    ours, theirs = request({"deadline": rfc3339(NOON)}), request({}, deadline=NOON)
    assert fingerprint(ours) != fingerprint(theirs)
    assert differing_fields(ours, theirs) == ["/deadline", "/input/deadline"]


@pytest.mark.parametrize("hours", [-12, -5.5, 0, 1, 14])
def test_the_same_instant_at_another_offset_is_the_same_request(hours: float) -> None:
    moved = NOON.astimezone(timezone(timedelta(hours=hours)))
    assert fingerprint(request(LINES, deadline=moved)) == fingerprint(request(LINES, deadline=NOON))
    assert differing_fields(request(LINES, deadline=moved), request(LINES, deadline=NOON)) == []


def test_times_differ_by_the_microsecond() -> None:
    later = NOON + timedelta(microseconds=1)
    assert fingerprint(request({}, deadline=NOON)) != fingerprint(request({}, deadline=later))


def test_a_time_without_an_offset_is_no_instant() -> None:
    with pytest.raises(ValueError, match="offset"):
        fingerprint(request({}, deadline=datetime(2026, 1, 1)))  # noqa: DTZ001 - the point


def test_case_49_differences_never_tell_values_and_are_bounded() -> None:
    ours = request({f"field{i:03}": "canary-ours" for i in range(100)} | {"k" * 5000: 1})
    theirs = request({f"field{i:03}": "canary-theirs" for i in range(100)})
    names = differing_fields(ours, theirs)
    assert names == [f"/input/field{i:03}" for i in range(identity.MAX_FIELDS_TOLD)]
    assert all(len(name) <= 200 for name in differing_fields(request({}), request({"k" * 5000: 1})))


def test_names_that_are_shown_alike_are_still_told_apart() -> None:
    long = "k" * 300
    assert len(differing_fields(request({long + "a": 1}), request({long + "b": 1}))) == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "a", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(st.sampled_from("abcd"), JSON, max_size=4)


@given(INPUTS, INPUTS)
def test_requests_differ_in_a_field_exactly_when_their_fingerprints_do(one: Any, other: Any) -> None:
    same = fingerprint(request(one)) == fingerprint(request(other))
    assert same == (differing_fields(request(one), request(other)) == [])


def test_rfc3339_is_utc_with_microseconds() -> None:
    assert rfc3339(NOON) == "2026-01-31T12:00:00.000000Z"
    assert rfc3339(datetime(1, 1, 1, tzinfo=UTC)) == "0001-01-01T00:00:00.000000Z"
