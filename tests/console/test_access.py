"""Who gets in, what a role may, what no other page can make a browser do, and the headers of every answer."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from shared.console.app import DECIDE, LOOK
from tests.console.kit import ABSENT, ADA, AUDIENCE, EVE, SECRET, STRANGER, VAL, Iap, Service, service_for
from tests.console.shop import Shop

PAGES = [path.replace("<id>", ABSENT) for path in LOOK]


def forged(iap: Iap, **header: str) -> str:
    """An assertion whose header was changed after it was signed."""
    _, claims, signature = iap.assertion(ADA).split(".")
    changed = base64.urlsafe_b64encode(json.dumps({"typ": "JWT", "kid": iap.kid} | header).encode()).rstrip(b"=")
    return f"{changed.decode()}.{claims}.{signature}"


BAD: dict[str, Callable[[Iap], str]] = {
    "empty": lambda _: "",
    "garbage": lambda _: "one.two.three",
    "long": lambda _: "a" * 8000 + ".b.c",
    "another audience": lambda iap: iap.sign(iap.claims(ADA, aud=AUDIENCE + "2")),
    "another issuer": lambda iap: iap.sign(iap.claims(ADA, iss="https://accounts.google.com")),
    "expired": lambda iap: iap.sign(iap.claims(ADA, iat=int(time.time()) - 700, exp=int(time.time()) - 60)),
    "of the future": lambda iap: iap.sign(iap.claims(ADA, iat=int(time.time()) + 60)),
    "without an e-mail": lambda iap: iap.sign(iap.claims("")),
    "with a list as e-mail": lambda iap: iap.sign(iap.claims(ADA, email=[ADA])),
    "by another key": lambda iap: Iap(iap.kid).assertion(ADA),
    "by an unknown key": lambda _: Iap("iap-2").assertion(ADA),
    "unsigned": lambda iap: forged(iap, alg="none"),
    "another algorithm": lambda iap: forged(iap, alg="HS256"),
    "RSA": lambda iap: forged(iap, alg="RS256"),
}


@pytest.mark.parametrize("address", [*PAGES, "/nowhere"])
def test_no_page_without_an_identity(service: Service, address: str) -> None:
    assert service.get(address, None).status == 401
    assert service.get(address, STRANGER).status == 403


@pytest.mark.parametrize("bad", BAD)
def test_an_assertion_that_is_not_iaps_is_refused(service: Service, iap: Iap, bad: str) -> None:
    assert service.send("GET", "/", headers={"X-Goog-IAP-JWT-Assertion": BAD[bad](iap)}).status == 401


def test_case_16_an_assertion_from_nine_seconds_ahead_is_accepted(service: Service, iap: Iap) -> None:
    ahead = iap.sign(iap.claims(ADA, iat=int(time.time()) + 9, exp=int(time.time()) + 600))
    assert service.send("GET", "/", headers={"X-Goog-IAP-JWT-Assertion": ahead}).status == 200


@pytest.mark.parametrize("address", DECIDE)
def test_a_viewer_sees_everything_and_can_do_nothing(service: Service, shop: Shop, address: str) -> None:
    token = service.token()
    before = shop.value("SELECT count(*) FROM reviews"), shop.value("SELECT count(*) FROM pauses")
    for who in (VAL, STRANGER):
        assert service.post(address, [("token", token), ("reason", "because")], who).status == 403
    assert service.post(address, [("token", token)], None).status == 401
    assert before == (shop.value("SELECT count(*) FROM reviews"), shop.value("SELECT count(*) FROM pauses"))


def test_a_viewers_pages_have_no_form_that_changes_anything(service: Service, shop: Shop) -> None:
    resting = shop.incompatible()
    for address in (
        "/", "/operations", f"/operations/{resting}", "/dead-letters", f"/dead-letters/{shop.letter_of(resting)}",
        f"/review?item={resting}/only", "/steps",
    ):  # fmt: skip
        assert service.get(address, ADA).status == 200
        seen = service.get(address, VAL)
        assert seen.status == 200
        assert [form for form in seen.forms if form.method != "get"] == []
        assert 'type="checkbox" name="item"' not in seen.text


def note(service: Service, shop: Shop) -> tuple[str, list[tuple[str, str]]]:
    operation_id = shop.failed()
    form = service.get(f"/operations/{operation_id}", ADA).form("/review/note")
    return str(operation_id), form.filled(reason="looked at it")


ORIGINS: list[dict[str, str | None]] = [
    {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"},
    {"Origin": "null"},
    {"Origin": "https://evil.example", "Sec-Fetch-Site": None},
    {"Origin": None, "Sec-Fetch-Site": "same-site"},
    {"Origin": None, "Sec-Fetch-Site": "none"},
    {"Origin": None, "Sec-Fetch-Site": None},
]


@pytest.mark.parametrize("headers", ORIGINS)
def test_a_form_from_elsewhere_is_refused(service: Service, shop: Shop, headers: dict[str, str | None]) -> None:
    operation_id, fields = note(service, shop)
    assert service.post("/review/note", fields, ADA, headers).status == 403
    assert shop.audit(operation_id) == []  # type: ignore[arg-type]


def changed(token: str, how: str) -> str:
    issued, _, signature = token.partition(".")
    return {
        "absent": "", "cut": token[:-1], "older": f"{int(issued) - 1}.{signature}", "no time": f".{signature}",
        "not ASCII": f"{issued}.é",
    }[how]  # fmt: skip


@pytest.mark.parametrize("how", ["absent", "cut", "older", "no time", "not ASCII"])
def test_a_form_without_its_token_is_refused(service: Service, shop: Shop, how: str) -> None:
    operation_id, fields = note(service, shop)
    broken = [(name, changed(value, how) if name == "token" else value) for name, value in fields]
    assert service.post("/review/note", broken, ADA).status == 403
    assert shop.audit(operation_id) == []  # type: ignore[arg-type]


def test_a_token_is_of_one_person(service: Service, shop: Shop) -> None:
    operation_id, fields = note(service, shop)
    assert service.post("/review/note", fields, EVE).status == 403
    assert service.post("/review/note", fields, ADA).status == 303
    assert len(shop.audit(operation_id)) == 1  # type: ignore[arg-type]


def test_a_token_is_good_in_every_instance(
    service: Service, shop: Shop, console_url: str, iap: Iap, keys_url: str, tmp_path: Any
) -> None:
    operation_id, fields = note(service, shop)
    other = service_for(console_url, iap, keys_url, shop.path, tmp_path)
    try:
        assert other.post("/review/note", fields, ADA).status == 303
    finally:
        other.stop()
    assert len(shop.audit(operation_id)) == 1  # type: ignore[arg-type]


def test_only_a_form_is_taken(service: Service, shop: Shop) -> None:
    operation_id, fields = note(service, shop)
    wrong = {"Content-Type": "text/plain"}
    assert service.post("/review/note", fields, ADA, wrong).status == 404
    assert shop.audit(operation_id) == []  # type: ignore[arg-type]
    assert service.get("/review/note").status == 405
    assert service.post("/operations", [], ADA).status == 405


def test_a_form_that_is_too_large_is_refused(service: Service, shop: Shop) -> None:
    _, fields = note(service, shop)
    assert service.post("/review/note", [*fields, ("reason", "x" * 2_000_000)], ADA).status == 413


HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.mark.parametrize("address", [*PAGES, "/nowhere", "/assets/nothing.css", "/assets/../main.py"])
@pytest.mark.parametrize("who", [ADA, STRANGER, None])
def test_every_answer_is_hardened_and_kept_nowhere(service: Service, address: str, who: str | None) -> None:
    answer = service.get(address, who)
    assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    assert answer.headers["Cache-Control"] == "no-store"
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    for part in ("base-uri 'none'", "form-action 'self'", "frame-ancestors 'none'", "script-src 'self'"):
        assert part in policy


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(service: Service) -> None:
    page = service.get("/").text
    assert re.findall(r"<script(?![^>]*src=)", page) == []
    assert re.findall(r"""\s(?:style|on[a-z]+)\s*=""", page) == []
    assert re.findall(r"""(?:src|href|action)="(?![/#])([^"]*)""", page) == []
    asset = re.search(r'href="(/assets/console.css[^"]*)"', page)
    assert asset
    served = service.get(asset[1], None)
    assert (served.status, served.headers["Content-Type"]) == (200, "text/css; charset=utf-8")
    assert "immutable" in served.headers["Cache-Control"]


def test_on_ones_own_machine_the_operator_is_fixed_and_a_banner_says_so(
    console_url: str, shop: Shop, iap: Iap, keys_url: str, tmp_path: Any
) -> None:
    local = service_for(
        console_url,
        iap,
        keys_url,
        shop.path,
        tmp_path,
        CONSOLE_AUDIENCE="",
        CONSOLE_SECRET="",
        CONSOLE_LOCAL_USER="sam",
    )
    try:
        page = local.get("/", None)
        assert page.status == 200
        assert "Local console." in page.text
        operation_id = shop.failed()
        form = local.get(f"/operations/{operation_id}", None).form("/review/note")
        assert local.post("/review/note", form.filled(reason="mine"), None).status == 303
        assert shop.audit(operation_id) == [["sam", "note", None, "mine"]]
        rebound = local.send("GET", "/", headers={"Host": f"evil.example:{local.port}"})
        assert rebound.status == 403
    finally:
        local.stop()


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        (
            {"CONSOLE_AUDIENCE": "", "CONSOLE_LOCAL_USER": "sam", "K_SERVICE": "console"},
            "CONSOLE_LOCAL_USER: is set, which",
        ),
        ({"CONSOLE_LOCAL_USER": "sam"}, "CONSOLE_AUDIENCE: is set beside CONSOLE_LOCAL_USER"),
        ({"CONSOLE_AUDIENCE": ""}, "CONSOLE_AUDIENCE: is not set"),
        ({"CONSOLE_SECRET": ""}, "CONSOLE_SECRET: is not set"),
        ({"CONSOLE_SECRET": "short"}, "CONSOLE_SECRET"),
        ({"CONSOLE_OPERATORS": "", "CONSOLE_VIEWERS": ""}, "lets nobody in"),
        ({"CONSOLE_OPERATORS": "Not An Address"}, "CONSOLE_OPERATORS: is not an e-mail"),
        ({"CONSOLE_KEYS_URL": "http://keys.example/keys"}, "CONSOLE_KEYS_URL: must be https"),
    ],
)
def test_a_console_that_would_let_the_wrong_people_in_does_not_start(
    service: Service, environment: dict[str, str], problem: str
) -> None:
    code = "from shared.config import load\nfrom shared.console.settings import ConsoleSettings\nload(ConsoleSettings)"
    env = service.env | environment
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert problem in done.stderr
    assert SECRET not in done.stderr
