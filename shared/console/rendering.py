"""HTML: Jinja2 with every value escaped, and every character that is not seen made visible."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from shared.review.timeline import time_of

HERE = Path(__file__).parent
STATIC = HERE / "static"
CONTENT_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
STATIC_FILES = frozenset(path.name for path in STATIC.iterdir() if path.suffix in CONTENT_TYPES)

# Controls, lone surrogates, soft hyphens, and what turns the direction of text or has no width: shown as a code, an
# operator sees what is there, and none of it can disguise what stands beside it.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u115f\u1160\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e01ef]"
)
# Which look a state, outcome or verdict has; each is always written out beside its colour.
TONES = {
    "good": ("succeeded", "confirmed", "skip", "closed", "already succeeded"),
    "busy": ("running", "queued", "requested", "intended", "approved", "resend"),
    "calm": ("waiting", "cancelled", "discarded", "handed_back", "wait"),
    "warn": ("retry", "not_sent", "abandoned", "paused", "undelivered"),
    "bad": ("failed", "exhausted", "rejected", "undeliverable", "malformed", "incompatible", "open"),
    "hold": ("needs_review", "unresolved", "unknown", "blocked"),
}
_TONE_OF = {state: tone for tone, states in TONES.items() for state in states}


def visible(value: Any) -> Any:
    """Return a text with what cannot be seen written as ⟨U+202E⟩; anything else as it is."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return _UNSEEN.sub(lambda match: f"⟨U+{ord(match[0]):04X}⟩", value)


def exact(value: object) -> Markup:
    """Return a value for a form's field: escaped, what cannot be seen as a reference that a browser reads as itself."""
    return Markup(_UNSEEN.sub(lambda match: f"&#{ord(match[0])};", str(escape(str(value)))))  # noqa: S704 - escaped


def age(seconds: float | None) -> str:
    """Write a span as people read it: 340 ms, 12.5 s, 45 s, 12 min, 3.5 h, 2.1 d."""
    if seconds is None:
        return ""
    if seconds < 0.9995:
        return f"{max(seconds, 0) * 1000:.0f} ms"
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}".replace(".0 ", " ")
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def moment(at: datetime | str, *, precise: bool = False) -> Markup:
    """Write a time, UTC, to the second or (`precise`) the millisecond; a text is as PostgreSQL writes one into JSON."""
    when = time_of(at).astimezone(UTC)
    clock = f"{when:%H:%M:%S}" + (f".{when.microsecond // 1000:03}" if precise else "")
    text = f"{when:%Y-%m-%d}\N{NO-BREAK SPACE}{clock}"
    return Markup('<time datetime="{}">{}</time>').format(when.isoformat(timespec="milliseconds"), text)


def pretty(value: Any) -> str:
    """Write a JSON value over several lines."""
    return json.dumps(value, indent=2, ensure_ascii=False, default=str)


def number(value: float) -> str:
    """Write a number with its thousands apart."""
    return f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def share(part: float, whole: float) -> str:
    """Write a part of a whole in percent, `–` when there is no whole; 100 % and 0 % only when they are exact."""
    if not whole:
        return "–"
    percent = 100 * part / whole
    if part != whole and percent > 99.9:
        return "> 99.9 %"
    if part and percent < 0.1:
        return "< 0.1 %"
    return f"{percent:.1f}".removesuffix(".0") + " %"


def words(state: str | None) -> str:
    """Write a state's name as words."""
    return (state or "").replace("_", " ")


def tone(state: str | None) -> str:
    """Return which look a state has."""
    return _TONE_OF.get(state or "", "calm")


@functools.cache
def asset(name: str) -> str:
    """Return the address of a static file; it changes with its content, so that browsers may keep the file."""
    return f"/assets/{name}?v={hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]}"


def renderer() -> Callable[..., str]:
    """Return what writes a template: its name and the values in it."""
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=visible,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.filters |= {
        "age": age, "exact": exact, "moment": moment, "number": number, "pretty": pretty, "tone": tone, "words": words,
    }  # fmt: skip
    environment.globals |= {"asset": asset, "share": share}

    def render(name: str, /, **values: Any) -> str:
        return environment.get_template(name).render(values)

    return render
