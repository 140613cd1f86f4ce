"""The console in a real browser: what an operator does at three in the morning, and what hostile text cannot do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from tests.console import hostile
from tests.console.kit import ADA, VAL, Iap, Service, service_for
from tests.console.scenes import PIPELINE_FILE, fill
from tests.console.screens import PHONE, WIDE, Scheme, page_of
from tests.console.screenshots import BAD, HOURS, OPERATIONS, addresses, shoot
from tests.console.shop import Shop


def widths_fit(page: Page) -> bool:
    """Whether nothing makes the page scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_a_failed_operation_is_found_read_dry_run_replayed_and_seen_to_succeed(
    browser: Browser, service: Service, shop: Shop
) -> None:
    operation_id, paid = shop.unresolved(), shop.paid
    key = shop.value(f"SELECT key FROM operations WHERE id = '{operation_id}'")
    with page_of(browser, service, ADA) as page:
        page.goto("/")
        page.get_by_role("link", name="Operations").click()
        page.get_by_label("Idempotency key").fill(key)
        page.get_by_role("button", name="Search").click()
        page.get_by_role("link", name=str(operation_id)).click()
        expect(page.get_by_role("heading", name="test.single")).to_contain_text("needs review")
        expect(page.locator("#picture svg rect.attempt")).to_have_count(5)
        expect(page.locator("#events")).to_contain_text("attempt 5: unresolved")
        page.get_by_role("link", name="Review only").click()
        expect(page.locator(".plan")).to_contain_text("resend")
        replay = page.locator("section", has=page.get_by_role("heading", name="Replay", exact=True))
        replay.get_by_label("Reason").fill("the bank is back")
        replay.get_by_role("button", name="Replay").click()
        expect(page.get_by_role("status").first).to_contain_text("Queued again.")
        expect(page.get_by_role("heading", name="test.single")).to_contain_text("running")
        assert shop.run(operation_id) == "succeeded"
        # by itself: the page looks again while the operation is under way
        expect(page.get_by_role("heading", name="test.single")).to_contain_text("succeeded", timeout=20_000)
        expect(page.locator("#updates-text")).to_contain_text("It has come to rest.")
        expect(page.locator("#events")).to_contain_text(f"replay resume by {ADA}")
    assert shop.paid == paid + 1


def test_fifty_are_replayed_at_once_but_two_that_cannot(browser: Browser, service: Service, shop: Shop) -> None:
    shop.query("UPDATE dead_letters SET state = 'closed', closed_at = now() WHERE state = 'open'")
    operations = [shop.incompatible() for _ in range(50)]
    late, over = operations[7], operations[30]
    shop.query(f"UPDATE operations SET deadline = now() - interval '1 minute' WHERE id = '{late}'")
    with page_of(browser, service, ADA) as page:
        page.goto("/dead-letters")
        page.get_by_label("All on this page").check()
        page.get_by_role("button", name="Dry run of the chosen ones").click()
        expect(page.get_by_role("heading", name="49 of 50 can be replayed")).to_be_visible()
        expect(page.locator(".plan", has_text="deadline has passed")).to_contain_text(str(late))
        shop.query(f"UPDATE steps SET generation = generation + 1 WHERE operation_id = '{over}'")  # somebody was faster
        replay = page.locator("section", has=page.get_by_role("heading", name="Replay", exact=True))
        replay.get_by_label("Reason").fill("the deploy is fixed")
        replay.get_by_role("button", name="Replay 49 of 50").click()
        expect(page.locator(".lead")).to_have_text("48 of 49 queued again, 1 not.")
        expect(page.locator("tr", has_text="not done")).to_contain_text(str(over))
    queued = {operation for operation in operations if shop.states(operation)["only"] == "queued"}
    assert queued == set(operations) - {late, over}


def test_a_viewer_cannot_act(browser: Browser, service: Service, shop: Shop) -> None:
    operation_id = shop.incompatible()
    with page_of(browser, service, VAL) as page:
        for address in ("/dead-letters", f"/operations/{operation_id}", f"/review?item={operation_id}/only", "/steps"):
            page.goto(address)
            expect(page.locator("form[method=post]")).to_have_count(0)
            expect(
                page.get_by_role("checkbox").locator("visible=true").and_(page.locator("[name=item]"))
            ).to_have_count(0)
        page.goto(f"/review?item={operation_id}/only")
        expect(page.locator("main")).to_contain_text("You are a viewer: an operator decides.")
        made_up = page.evaluate(
            """async (item) => (await fetch("/review/replay", { method: "POST", body: new URLSearchParams(
                { seen: `${item}/only:1:0`, reason: "because", token: "1.a" }) })).status""",
            str(operation_id),
        )
        assert made_up == 403
    assert shop.states(operation_id) == {"only": "exhausted"}


@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_hostile_text_is_inert_and_breaks_no_layout(browser: Browser, service: Service, shop: Shop, width: int) -> None:
    operation, letter = hostile.plant(shop)
    try:
        with page_of(browser, service, ADA, width=width) as page:
            for address in (
                "/", "/operations", f"/operations/{operation}", "/dead-letters", f"/dead-letters/{letter}",
                f"/review?item={operation}/only", "/steps",
            ):  # fmt: skip
                page.goto(address)
                assert page.locator("script:not([src]), main svg[onload], main img, [onerror]").count() == 0, address
                assert widths_fit(page), address
                page.evaluate("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
                assert widths_fit(page), address
    finally:
        hostile.clean(shop)


def test_everything_can_be_done_with_the_keyboard(browser: Browser, service: Service, shop: Shop) -> None:
    operation_id = shop.incompatible("a keyboard is enough")
    with page_of(browser, service, ADA) as page:
        page.goto("/dead-letters")
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
        page.keyboard.press("Enter")
        tab_to(page, f'[href="/dead-letters/{shop.letter_of(operation_id)}"]')
        page.keyboard.press("Enter")
        tab_to(page, f'[href="/review?item={operation_id}/only"]')
        page.keyboard.press("Enter")
        tab_to(page, '[action="/review/replay"] textarea')
        page.keyboard.type("by hand")
        tab_to(page, '[action="/review/replay"] button')
        page.keyboard.press("Enter")
        page.wait_for_url(re.compile(r"done=replay"))
    assert shop.audit(operation_id) == [[ADA, "replay", "resume", "by hand"]]


def tab_to(page: Page, selector: str) -> None:
    """Press Tab until an element has the focus, which must then be seen."""
    page.wait_for_selector(selector)
    for _ in range(200):
        page.keyboard.press("Tab")
        if page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
            return
    raise AssertionError(f"{selector} is never reached")


def test_without_script_everything_works(browser: Browser, service: Service, shop: Shop) -> None:
    operation_id = shop.incompatible()
    with page_of(browser, service, ADA, script=False) as page:
        page.goto("/dead-letters")
        page.locator(f'input[value="{operation_id}/only"]').check()
        page.get_by_role("button", name="Dry run of the chosen ones").click()
        page.locator("[action='/review/replay'] textarea").fill("no script")
        page.get_by_role("button", name="Replay").click()
        expect(page.get_by_role("status").first).to_contain_text("Queued again.")
    assert shop.states(operation_id) == {"only": "queued"}


def test_a_page_that_cannot_look_again_says_so(
    browser: Browser, shop: Shop, console_url: str, iap: Iap, keys_url: str, tmp_path: Path
) -> None:
    dying = service_for(console_url, iap, keys_url, shop.path, tmp_path)
    with page_of(browser, dying, ADA) as page:
        page.goto("/")
        page.on("console", lambda _: None)
        page.route("**/", lambda route: route.fulfill(status=503, body=""))
        expect(page.locator("#updates-text")).to_contain_text("This is not up to date", timeout=20_000)
        page.unroute("**/")
        expect(page.locator("#updates-text")).to_contain_text("Updates every 5 s", timeout=20_000)
        page.get_by_role("button", name="Stop updating").click()
        expect(page.locator("#updates-text")).to_contain_text("Updating is stopped")
    dying.stop()


@pytest.fixture(scope="module")
def scene(
    postgres_scene: str, iap: Iap, keys_url: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Service, dict[str, str]]]:
    """A console before a database that has something of everything."""
    fill(postgres_scene, OPERATIONS, BAD, HOURS)
    service = service_for(postgres_scene, iap, keys_url, PIPELINE_FILE, tmp_path_factory.mktemp("scene"))
    yield service, addresses(postgres_scene)
    service.stop()


@pytest.mark.parametrize("scheme", get_args(Scheme))
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_every_page_is_accessible_and_fits(
    browser: Browser, scene: tuple[Service, dict[str, str]], scheme: Scheme, width: int
) -> None:
    service, pages = scene
    with page_of(browser, service, ADA, width=width, scheme=scheme) as page:
        for name, address in pages.items():
            page.goto(address)
            assert widths_fit(page), name
            found = Axe().run(page).response["violations"]
            told = [(name, rule["id"], rule["impact"], rule["nodes"][0]["html"][:200]) for rule in found]
            assert [each for each in told if each[2] in ("serious", "critical")] == []


def test_nothing_moves_when_a_page_looks_again(browser: Browser, scene: tuple[Service, dict[str, str]]) -> None:
    service, _ = scene
    with page_of(browser, service, ADA) as page:
        page.add_init_script(
            """window.shift = 0;
            const add = (list) => list.getEntries().forEach((entry) => { window.shift += entry.value; });
            new PerformanceObserver(add).observe({ type: "layout-shift", buffered: true });"""
        )
        page.goto("/")
        with page.expect_response("**/"):
            pass
        page.wait_for_function("document.querySelector('#updates-text').textContent.startsWith('Updates')")
        assert page.evaluate("window.shift") < 0.02


def test_pictures_of_every_page(scene: tuple[Service, dict[str, str]], browser: Browser, tmp_path: Path) -> None:
    service, pages = scene
    folder = Path(os.environ.get("ECHOPROOF_SCREENSHOTS") or tmp_path)
    shoot(service, pages, folder, browser)
    for name in pages:
        assert {path.name for path in folder.glob(f"{name}-*.png")} >= {
            f"{name}-{width}-{scheme}.png" for width in (WIDE, PHONE) for scheme in get_args(Scheme)
        }
