"""What pages show, and what they never do: other people's text as markup, secrets, an exception."""

from __future__ import annotations

import html
from collections.abc import Iterator
from urllib.parse import quote
from uuid import uuid4

import pytest

from local.postgres import free_port
from shared import database_errors, steps
from tests.console import hostile
from tests.console.kit import ADA, Iap, Service, service_for
from tests.console.shop import Shop

CANARY = "canary-7f3a9c"


@pytest.fixture
def planted(shop: Shop) -> Iterator[tuple[str, str]]:
    yield hostile.plant(shop)
    hostile.clean(shop)


def test_hostile_text_is_text_on_every_page(service: Service, planted: tuple[str, str]) -> None:
    operation, letter = planted
    for address in (
        "/", "/operations", f"/operations?key={quote(hostile.EVIL)}", f"/operations/{operation}", "/dead-letters",
        f"/dead-letters/{letter}", f"/review?item={operation}/only", "/steps",
        f"/operations?tenant={quote(hostile.SCRIPT)}&type={quote(hostile.SCRIPT)}&id={quote(hostile.TURNED)}",
        f"/dead-letters?step={quote(hostile.SCRIPT)}&tenant={quote(hostile.TURNED)}",
    ):  # fmt: skip
        page = service.get(address)
        assert page.status == 200, address
        assert "<script>alert" not in page.text
        assert "onerror=alert(2)>" not in page.text
        assert "<svg onload" not in page.text
        assert "<b>wide" not in page.text
        for unseen in ("\u202e", "\u2066", "\u200b", "\ufeff", "\x00"):
            assert unseen not in page.text
        assert "$49" not in page.text
        assert "49$" not in page.text
    shown = html.unescape(service.get(f"/operations/{operation}").text)
    assert "⟨U+202E⟩" in shown
    assert "⟨U+D800⟩" in shown
    assert r"\u0000 and \ud800 and \\u0000" in shown  # plain characters stay what they are


def test_a_hostile_effects_name_travels_through_the_form(
    service: Service, shop: Shop, planted: tuple[str, str]
) -> None:
    operation, _ = planted
    form = service.get(f"/review?item={operation}/only").form("/review/resolve")
    told = form.filled(reason="asked", **{"outcome-0": "happened"})
    assert service.post("/review/resolve", told).status == 303
    assert shop.value(f"SELECT state FROM effects WHERE operation_id = '{operation}'") == "confirmed"


def test_case_49_a_secret_is_on_no_page_and_in_no_log(service: Service, shop: Shop) -> None:
    given = {"n": 1, "secret": CANARY, "customer": {"name": CANARY}}
    accepted = shop.accept(given=given, key="with-a-secret")
    held = shop.claimed(accepted.due[0])
    steps.succeed(shop.database, held, {"secret": CANARY})
    for code in ("23502", "23505", "22P02"):
        failed = shop.accept(given=given, key=f"failed-{code}")
        held = shop.claimed(failed.due[0])
        error = database_errors.QueryError(code)
        steps.fail(shop.database, held, steps.Outcome.INCOMPATIBLE, type(error).__name__, str(error), shop.soon)
    pages = ["/", "/operations", "/dead-letters", "/steps", f"/operations/{accepted.operation_id}"]
    pages += [f"/operations/{row[0]}" for row in shop.query("SELECT id FROM operations WHERE key LIKE 'failed-2%'")]
    pages += [
        f"/review?item={row[0]}/only" for row in shop.query("SELECT id FROM operations WHERE key LIKE 'failed-2%'")
    ]
    for address in pages:
        page = service.get(address)
        assert page.status == 200
        assert CANARY not in page.text, address
    assert "•••" in service.get(f"/operations/{accepted.operation_id}").text
    assert CANARY not in service.log()


def test_operations_are_found_by_what_is_known_of_them(service: Service, shop: Shop) -> None:
    wanted = shop.failed(key="order-found-me")
    for query in ("key=order-found-me", f"id={wanted}", f"id={str(wanted).upper()}", "key=order-found-me&state=failed",
                  "key=order-found-me&tenant=shop&type=test.single"):  # fmt: skip
        assert f"/operations/{wanted}" in service.get(f"/operations?{query}").text, query
    for query in (
        "key=order-found-me&state=running",
        "key=order-found-me&tenant=rival",
        "id=nonsense",
        f"id={uuid4()}",
    ):
        page = service.get(f"/operations?{query}")
        assert (page.status, "No operation is like this." in page.text) == (200, True), query
    assert service.get("/operations?state=done").status == 400
    assert service.get("/operations?cursor=x").status == 400
    assert service.get("/operations?key=%00%ff").status == 200


def test_lists_go_on_where_the_page_before_ended(service: Service, shop: Shop) -> None:
    made = {str(shop.incompatible()) for _ in range(55)}
    for address in ("/operations", "/dead-letters?cause=exhausted"):
        seen: list[str] = []
        following: str | None = address
        while following and not made <= set(seen):
            page = service.get(following).text
            seen += [part.partition('"')[0] for part in page.split('href="/operations/')[1:] if part[8] == "-"]
            following = None
            if 'rel="next"' in page:
                following = html.unescape(page.rpartition('" rel="next"')[0].rpartition('href="')[2])
        assert made <= set(seen)
        assert len(seen) == len(set(seen))


def test_what_does_not_exist_is_404(service: Service) -> None:
    for address in (
        f"/operations/{uuid4()}", "/operations/nonsense", f"/dead-letters/{uuid4()}", "/nowhere", "//operations",
        "/operations/", "/operations%2f", "/index.html",
    ):  # fmt: skip
        assert (service.get(address).status, service.get(address).title) == (404, "Not found"), address


def test_without_the_database_a_page_says_so(shop: Shop, iap: Iap, keys_url: str, tmp_path: object) -> None:
    nowhere = f"postgresql://postgres@127.0.0.1:{free_port()}/postgres"
    away = service_for(nowhere, iap, keys_url, shop.path, tmp_path, DATABASE_URL=nowhere)  # type: ignore[arg-type]
    try:
        for address in ("/", "/operations", "/dead-letters", "/steps", f"/operations/{uuid4()}"):
            page = away.get(address)
            assert (page.status, page.title, page.headers["Retry-After"]) == (503, "The database is away", "5")
        assert "Traceback" not in away.log()
    finally:
        away.stop()


def test_the_overview_shows_what_the_database_says(service: Service, shop: Shop) -> None:
    shop.unresolved()
    page = service.get("/", ADA).text
    assert "Unknown effects" in page
    assert "test.single/" in page
    for (cause,) in shop.query("SELECT DISTINCT cause FROM dead_letters WHERE state = 'open'"):
        assert f"/dead-letters?cause={cause}" in page


def test_a_step_that_the_pipeline_does_not_have_any_more_is_shown(service: Service, shop: Shop) -> None:
    operation_id = shop.failed()
    shop.query(f"UPDATE operations SET type = 'test.gone' WHERE id = '{operation_id}'")
    page = service.get(f"/operations/{operation_id}")
    assert page.status == 200
    assert "•••" in page.text  # nobody says any more what may be shown
    assert "incompatible" in service.get(f"/review?item={operation_id}/only").text
