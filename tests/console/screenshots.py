"""Pictures of every page: `python -m tests.console.screenshots FOLDER`, two widths, light and dark."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import get_args

from playwright.sync_api import Browser

from local.postgres import temporary
from shared.database import Connection, connector
from shared.migrate import migrate
from tests.console.kit import ADA, VAL, Iap, Service, service_for
from tests.console.scenes import PIPELINE_FILE, fill
from tests.console.screens import PHONE, WIDE, Scheme, browser, page_of

OPERATIONS, BAD, HOURS = 1600, 28, 2.2


def addresses(url: str) -> dict[str, str]:
    """Return the name of each picture and where it is taken."""
    raw = Connection(connector(url)()).raw
    unresolved = raw.run(
        "SELECT operation_id || '/' || step FROM steps WHERE state = 'unresolved' ORDER BY operation_id DESC LIMIT 3"
    )
    exhausted = raw.run("SELECT operation_id FROM steps WHERE state = 'exhausted' ORDER BY operation_id DESC LIMIT 1")
    letter = raw.run("SELECT id FROM dead_letters WHERE cause = 'malformed' LIMIT 1")
    story = raw.run("SELECT operation_id FROM reviews LIMIT 1")
    many = raw.run("SELECT operation_id || '/' || step FROM steps WHERE state = 'exhausted' LIMIT 2")
    raw.close()
    items = [str(row[0]) for row in [*unresolved, *many]]
    return {
        "overview": "/",
        "operations": "/operations",
        "operation": f"/operations/{items[0].partition('/')[0]}",
        "operation-exhausted": f"/operations/{exhausted[0][0]}",
        "operation-replayed": f"/operations/{story[0][0]}",
        "dead-letters": "/dead-letters",
        "dead-letter": f"/dead-letters/{letter[0][0]}",
        "dry-run": f"/review?item={items[0]}",
        "dry-run-many": "/review?" + "&".join(f"item={item}" for item in items) + "&mode=new_generation",
        "steps": "/steps",
        "empty": "/operations?key=nothing-like-this",
        "not-found": "/nowhere",
    }


def shoot(service: Service, pages: dict[str, str], folder: Path, started: Browser) -> None:
    """Take every picture."""
    folder.mkdir(parents=True, exist_ok=True)
    for width in (WIDE, PHONE):
        for scheme in get_args(Scheme):
            with page_of(started, service, ADA, width=width, scheme=scheme) as page:
                for name, address in pages.items():
                    page.goto(address)
                    page.screenshot(path=folder / f"{name}-{width}-{scheme}.png", full_page=True)
    with page_of(started, service, VAL) as page:
        page.goto(pages["operation"])
        page.screenshot(path=folder / f"viewer-{WIDE}-light.png", full_page=True)


def main(folder: Path) -> None:
    """Make a database with scenes, start the console before it, and take the pictures."""
    server, data = temporary(fsync="off")
    scratch = Path(tempfile.mkdtemp(prefix="echoproof-console-"))
    iap = Iap()
    keys = iap.server()
    keys.start()
    try:
        with server:
            migrate(connector(server.url))
            fill(server.url, OPERATIONS, BAD, HOURS)
            service = service_for(server.url, iap, keys.url, PIPELINE_FILE, scratch)
            try:
                with browser() as started:
                    shoot(service, addresses(server.url), folder, started)
            finally:
                service.stop()
    finally:
        keys.stop()
        shutil.rmtree(data, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "artifacts/screenshots"))
