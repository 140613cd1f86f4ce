"""The pages: each reads what it shows and returns the template's values; none of them changes anything."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from werkzeug.datastructures import MultiDict

from shared import circuits, pauses
from shared.console import charts, forms, picture
from shared.console.answers import Desk, Page
from shared.console.forms import Target
from shared.errors import EchoproofError, InvalidRequestError, NotFoundError, UnavailableError, sanitise
from shared.intake_reading import STATES, operation_id_of
from shared.review import plan, pulse, reading, timeline
from shared.review.plan import Plan
from shared.transitions import RESTING_STEPS

Query = MultiDict[str, str]

DONE = {
    "replay": "Queued again. The relay publishes it within a minute.",
    "resolve": "Recorded. What needs this step starts within a minute.",
    "absent": "Recorded in the ledger: the effect did not happen. The step rests; replay it when you are ready.",
    "discard": "Given up for good.",
    "note": "Noted.",
    "pause": "Paused. Attempts that run go on; nothing new starts.",
    "resume": "Resumed. What was held back goes out, usually within a minute or two.",
}
LETTER_STATES = {"open": ("open",), "closed": ("closed",), "all": ("open", "closed")}
REFRESH = 5  # seconds between two looks at a page that changes
MOST_ENTRIES = 500  # of one operation's lists on a page; the command line shows all
MAX_WORD = 300  # characters of a search field


def overview(desk: Desk, query: Query) -> Page:  # noqa: ARG001 - a view
    """Show how the pipeline is."""
    taken = pulse.take(desk.database, desk.pipeline)
    return Page(
        "overview.html",
        {
            "pulse": taken,
            "chart": charts.throughput(taken.minutes, taken.taken_at),
            "deepest": max((step.due + step.running for step in taken.steps), default=0),
            "refresh": REFRESH,
        },
    )


def operations(desk: Desk, query: Query) -> Page:
    """Show operations, found by id, key, tenant, state or type."""
    asked = _words(query, "id", "key", "tenant", "state", "type", "cursor")
    known = sorted({*desk.pipeline.operations, *filter(None, [asked["type"]])})
    values = {"asked": asked, "states": sorted(STATES), "types": known, "more": None}
    if asked["state"] and asked["state"] not in STATES:
        raise InvalidRequestError("invalid-query", f"state is one of {', '.join(sorted(STATES))}")
    if asked["id"]:
        return Page("operations.html", values | {"found": _by_id(desk, asked["id"])})
    page = reading.operations(
        desk.database, tenant=asked["tenant"], state=asked["state"], operation_type=asked["type"],
        key=asked["key"], cursor=_cursor(asked["cursor"]),
    )  # fmt: skip
    return Page("operations.html", values | {"found": page.items, "more": _next("/operations", asked, page.cursor)})


def operation(desk: Desk, query: Query, id: str) -> Page:  # noqa: A002 - the route's word
    """Show one operation and everything that happened to it."""
    found = reading.operation(desk.database, desk.pipeline, operation_id_of(id))
    told = timeline.events(found)
    return Page(
        "operation.html",
        {
            "found": found,
            "picture": picture.draw(found),
            "events": told[-MOST_ENTRIES:],
            "left_out": max(len(told) - MOST_ENTRIES, 0),
            "resting": [step for step in found["steps"] if step["state"] in RESTING_STEPS],
            "done": DONE.get(query.get("done", "")),
            "refresh": REFRESH if found["state"] in ("requested", "running") else None,
        },
    )


def letters(desk: Desk, query: Query) -> Page:
    """Show the review queue."""
    asked = _words(query, "state", "cause", "tenant", "type", "step", "cursor")
    which = asked["state"] or "open"
    if which not in LETTER_STATES or (asked["cause"] and asked["cause"] not in reading.CAUSES):
        raise InvalidRequestError("invalid-query", "there is no such state or cause of a dead letter")
    page = reading.letters(
        desk.database, states=LETTER_STATES[which], cause=asked["cause"], tenant=asked["tenant"],
        operation_type=asked["type"], step=asked["step"], cursor=_cursor(asked["cursor"]),
    )  # fmt: skip
    known = sorted({*desk.pipeline.operations, *filter(None, [asked["type"]])})
    return Page(
        "letters.html",
        {
            "asked": asked | {"state": which},
            "causes": reading.CAUSES,
            "types": known,
            "found": page.items,
            "more": _next("/dead-letters", asked, page.cursor),
            "resting": RESTING_STEPS,
            "done": DONE.get(query.get("done", "")),
        },
    )


def letter(desk: Desk, query: Query, id: str) -> Page:  # noqa: A002 - the route's word
    """Show one dead letter, whole."""
    found = reading.letter(desk.database, operation_id_of(id))
    return Page("letter.html", {"found": found, "done": DONE.get(query.get("done", ""))})


def dry_run(desk: Desk, query: Query) -> Page:
    """Show what a replay of one or many steps would do, and the forms to decide about them."""
    mode, renew = forms.mode_of(query), query.getlist("renew")
    lift = "lift_deadline" in query
    shown: list[tuple[Target, Plan | str]] = []
    for target in forms.targets(query):
        try:
            shown.append(_planned(desk, target, mode, renew, lift=lift))
        except UnavailableError:
            raise
        except EchoproofError as error:
            shown.append((target, str(error)))
    if len(shown) == 1 and isinstance(shown[0][1], str) and shown[0][0].step is not None:
        raise NotFoundError
    plans = [found for _, found in shown if isinstance(found, Plan)]
    return Page(
        "review.html",
        {
            "shown": shown,
            "plans": plans,
            "allowed": [found for found in plans if found.refusal is None],
            "resting": [found for found in plans if found.state in RESTING_STEPS],
            "mode": mode,
            "modes": plan.MODES,
            "renew": renew,
            "effects": sorted({effect.name for found in plans for effect in found.effects}),
            "lift_deadline": lift,
            "address": lambda other: "/review?" + urlencode([*(("item", str(t)) for t, _ in shown), ("mode", other)]),
        },
    )


def steps(desk: Desk, query: Query) -> Page:
    """Show the configuration in force, and what is paused."""
    held = {(pause.kind, pause.name): pause for pause in pauses.listed(desk.database)}
    providers = sorted({name for step in desk.pipeline.steps for name in step.providers})
    return Page(
        "steps.html",
        {
            "pipeline": desk.pipeline,
            "providers": providers,
            "circuits": {circuit.provider: circuit for circuit in circuits.listed(desk.database)},
            "pauses": held,
            "done": DONE.get(query.get("done", "")),
        },
    )


def _planned(desk: Desk, target: Target, mode: plan.Mode, renew: list[str], *, lift: bool) -> tuple[Target, Plan | str]:
    """Make the plan of a step, or of the step that a letter belongs to; a letter of none gets a text."""
    if target.step is None:
        found = reading.letter(desk.database, target.id)
        if found["step"] is None or found["operation_id"] is None:
            return target, "belongs to no operation: it can be noted or discarded on its own page"
        target = Target(found["operation_id"], found["step"])
    return target, plan.dry_run(
        desk.database, desk.pipeline, target.id, str(target.step), mode, renew, lift_deadline=lift
    )


def _by_id(desk: Desk, text: str) -> tuple[Any, ...]:
    try:
        found = reading.operation(desk.database, desk.pipeline, operation_id_of(text.lower()))
    except NotFoundError:
        return ()
    return (found,)


def _words(query: Query, *names: str) -> dict[str, str | None]:
    """Read fields; what is empty is not asked for, and what is too long is cut: it finds nothing."""
    return {name: sanitise(query.get(name, "").strip(), MAX_WORD) or None for name in names}


def _cursor(text: str | None) -> UUID | None:
    try:
        return None if text is None else operation_id_of(text)
    except NotFoundError:
        raise InvalidRequestError("invalid-query", "the page to go on from is not one of ours") from None


def _next(path: str, asked: dict[str, str | None], cursor: UUID | None) -> str | None:
    if cursor is None:
        return None
    return f"{path}?{urlencode({name: value for name, value in asked.items() if value} | {'cursor': str(cursor)})}"
