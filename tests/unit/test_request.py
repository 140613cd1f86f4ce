"""Reading a request's body, key and tenant (cases 9, 10, and 30 malformed bodies)."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest

from shared.errors import InvalidRequestError
from shared.identity import Options, Request, check_key, check_tenant, check_type, parse_request
from shared.pipeline import Pipeline
from shared.request import MAX_BODY_BYTES, parse_time

PIPELINE = Pipeline.load(Path(__file__).parents[2] / "pipeline.yaml")


def test_a_whole_body() -> None:
    body = (
        b'{"type":"invoice.generate","input":{"order":"536365"},"not_before":"2026-01-31T08:00:00+01:00",'
        b'"deadline":"2026-01-31t09:00:00.5z","ordering_key":"customer-7"}'
    )
    assert parse_request(body, PIPELINE) == Request(
        "invoice.generate",
        {"order": "536365"},
        Options(
            not_before=datetime(2026, 1, 31, 7, tzinfo=UTC),
            deadline=datetime(2026, 1, 31, 9, 0, 0, 500_000, tzinfo=UTC),
            ordering_key="customer-7",
        ),
    )


def test_the_smallest_body() -> None:
    assert parse_request(b'{"type":"report.generate","input":{}}', PIPELINE) == Request("report.generate", {})


OK = '"type":"invoice.generate","input":{}'


@pytest.mark.parametrize(
    ("body", "slug", "pointer"),
    [
        ("", "invalid-json", ""),
        ("{", "invalid-json", ""),
        ("{" + OK + "}{}", "invalid-json", ""),
        ("{" + OK + ',"input":{}}', "invalid-json", "/input"),
        ('{"type":"invoice.generate","input":{"a":1e400}}', "invalid-json", "/input/a"),
        ('{"type":"invoice.generate","input":{"a":NaN}}', "invalid-json", "/input/a"),
        (r'{"type":"invoice.generate","input":{"a":"\u0000"}}', "invalid-json", "/input/a"),
        ('{"type":"invoice.generate","input":' + '{"a":' * 40 + "1" + "}" * 41, "invalid-json", ""),
        ("null", "invalid-request", ""),
        ("[]", "invalid-request", ""),
        ('"text"', "invalid-request", ""),
        ("{}", "invalid-request", "/type"),
        ('{"input":{}}', "invalid-request", "/type"),
        ('{"type":"invoice.generate"}', "invalid-request", "/input"),
        ('{"type":null,"input":{}}', "invalid-request", "/type"),
        ('{"type":7,"input":{}}', "invalid-request", "/type"),
        ('{"type":"","input":{}}', "invalid-request", "/type"),
        ('{"type":"Invoice.Generate","input":{}}', "invalid-request", "/type"),
        ('{"type":"invoice.generate\\n","input":{}}', "invalid-request", "/type"),
        ('{"type":"invoice.delete","input":{}}', "unknown-type", "/type"),
        ('{"type":"invoice.generate","input":null}', "invalid-request", "/input"),
        ('{"type":"invoice.generate","input":[]}', "invalid-request", "/input"),
        ('{"type":"invoice.generate","input":"{}"}', "invalid-request", "/input"),
        ("{" + OK + ',"priority":1}', "invalid-request", "/priority"),
        ("{" + OK + ',"Deadline":"2026-01-31T08:00:00Z"}', "invalid-request", "/Deadline"),
        ("{" + OK + ',"deadline":null}', "invalid-request", "/deadline"),
        ("{" + OK + ',"deadline":1767225600}', "invalid-request", "/deadline"),
        ("{" + OK + ',"deadline":"2026-01-31T08:00:00"}', "invalid-request", "/deadline"),
        ("{" + OK + ',"deadline":"2026-01-31"}', "invalid-request", "/deadline"),
        ("{" + OK + ',"not_before":"2026-02-30T08:00:00Z"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"not_before":"2026-01-31T08:00:00.1234567Z"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"not_before":"2026-01-31T08:00:00+25:00"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"not_before":"0001-01-01T00:00:00+01:00"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"not_before":"9999-12-31T23:59:59-01:00"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"not_before":"tomorrow"}', "invalid-request", "/not_before"),
        ("{" + OK + ',"ordering_key":""}', "invalid-request", "/ordering_key"),
        ("{" + OK + ',"ordering_key":"a b"}', "invalid-request", "/ordering_key"),
        ("{" + OK + ',"ordering_key":"é"}', "invalid-request", "/ordering_key"),
        ("{" + OK + ',"ordering_key":null}', "invalid-request", "/ordering_key"),
        ("{" + OK + ',"ordering_key":"' + "k" * 256 + '"}', "invalid-request", "/ordering_key"),
        (
            "{" + OK + ',"not_before":"2026-01-31T08:00:00Z","deadline":"2026-01-31T09:00:00+01:00"}',
            "invalid-request",
            "/deadline",
        ),
    ],
)
def test_a_malformed_body_is_refused_by_name(body: str, slug: str, pointer: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        parse_request(body.encode(), PIPELINE)
    assert (caught.value.slug, caught.value.pointer) == (slug, pointer)
    assert caught.value.detail


def test_cases_12_and_13_the_size_of_a_body_is_bounded() -> None:
    def body(size: int) -> bytes:
        text = b'{"type":"invoice.generate","input":{"note":""}}'
        return text.replace(b'""', b'"' + b"x" * (size - len(text)) + b'"')

    assert len(body(MAX_BODY_BYTES)) == MAX_BODY_BYTES
    assert parse_request(body(2_000_000), PIPELINE).type == "invoice.generate"
    assert parse_request(body(MAX_BODY_BYTES), PIPELINE).type == "invoice.generate"
    for size in (MAX_BODY_BYTES + 1, 9_900_000, 10_000_000, 10_100_000):
        with pytest.raises(InvalidRequestError) as caught:
            parse_request(body(size), PIPELINE)
        assert caught.value.slug == "body-too-large"


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31T08:00:00Z", datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ("2026-01-31T08:00:00.000001+05:30", datetime(2026, 1, 31, 2, 30, 0, 1, tzinfo=UTC)),
        ("2026-01-31T08:00:00-00:00", datetime(2026, 1, 31, 8, tzinfo=UTC)),
        ("2024-02-29T23:59:59+14:00", datetime(2024, 2, 29, 23, 59, 59, tzinfo=timezone(timedelta(hours=14)))),
    ],
)
def test_a_time_is_read_to_the_microsecond(text: str, moment: datetime) -> None:
    assert parse_time(text) == moment
    assert parse_time(text).tzinfo is UTC


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-31 08:00:00Z",
        "20260131T080000Z",
        "2026-W05-6T08:00:00Z",
        "2026-01-31T08:00Z",
        "2026-01-31T08:00:60Z",
        "2026-01-31T24:00:00Z",
        "2026-01-31T08:00:00 Z",
        "2026-01-31T08:00:00,5Z",
        "2026-01-31T08:00:00+0100",
        "٢٠٢٦-01-31T08:00:00Z",
        "2026-01-31T08:00:00Z\n",
    ],
)
def test_a_time_that_is_not_rfc_3339_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_time(text)


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("order-536365", "order-536365"),
        ('"order-536365"', "order-536365"),
        (' "order-536365"\t', "order-536365"),
        (r'"a\"b\\c"', r"a\b".replace("\\", '"', 1) + "\\c"),
        (r'a"b\c', 'a"b\\c'),
        ("!~", "!~"),
        ("k" * 255, "k" * 255),
        ('"' + "k" * 255 + '"', "k" * 255),
        ('"' + r"\"" * 255 + '"', '"' * 255),
        ("a,b;c=1", "a,b;c=1"),
    ],
)
def test_a_key_bare_or_quoted_is_one_key(header: str, key: str) -> None:
    assert check_key(header) == key


@pytest.mark.parametrize(
    "header",
    [
        "",
        " ",
        '""',
        '"',
        '"a',
        '"a"b',
        '"a";p=1',
        '"a","b"',
        r'"a\x"',
        '"a\\"',
        '"a b"',
        "a b",
        "a\x00b",
        "a\x7f",
        "a\nb",
        "é",
        "k" * 256,
        '"' + "k" * 256 + '"',
        "\ud800",
    ],
)
def test_case_9_a_key_that_is_not_visible_ascii_is_refused(header: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_key(header)
    assert caught.value.slug == "invalid-key"


def test_a_long_quoted_key_is_refused_in_bounded_time() -> None:
    for header in ('"' + "\\\\" * 100_000, '"' + "a" * 1_000_000, '"' + "\\" * 1_000_001):
        with pytest.raises(InvalidRequestError):
            check_key(header)


@pytest.mark.parametrize("tenant", ["shop", "shop-1", "0", "a_b", "a" * 63])
def test_a_tenant(tenant: str) -> None:
    assert check_tenant(tenant) == tenant


@pytest.mark.parametrize("tenant", ["", "Shop", "-a", "_a", "a b", "a/b", "a\0", "é", "a" * 64, "*", "shop\n", ".."])
def test_what_is_no_tenant(tenant: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_tenant(tenant)
    assert caught.value.slug == "invalid-tenant"


def test_a_type() -> None:
    assert check_type("invoice.generate") == "invoice.generate"
    for text in ("", ".a", "a.", "a..b", "A", "a-b", "a" * 1000, "a\n"):
        with pytest.raises(InvalidRequestError):
            check_type(text)
