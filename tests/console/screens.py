"""A real browser, where there is one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, Page, sync_playwright

from shared.console.access import ASSERTION
from tests.console.kit import Service

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
WIDE, PHONE = 1280, 390  # px
HEIGHTS = {WIDE: 900, PHONE: 844}
Scheme = Literal["light", "dark"]


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Start Debian's Chromium."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield started
        started.close()


@contextlib.contextmanager
def page_of(
    started: Browser,
    service: Service,
    who: str | None,
    *,
    width: int = WIDE,
    scheme: Scheme = "light",
    script: bool = True,
) -> Iterator[Page]:
    """Open a page as a person sees it; what a script or the console of the browser complains of is an error."""
    headers = {} if who is None else {ASSERTION: service.iap.assertion(who)}
    context: Any = started.new_context(
        base_url=service.url, viewport={"width": width, "height": HEIGHTS[width]}, color_scheme=scheme,
        extra_http_headers=headers, java_script_enabled=script, reduced_motion="reduce",
    )  # fmt: skip
    page: Page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: complaints.append(f"a dialog: {dialog.message}"))
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    yield page
    context.close()
    unexpected = [text for text in complaints if "status of 4" not in text and "status of 5" not in text]
    assert unexpected == [], unexpected
