"""The decisions: each reads a form, acts through `shared.review`, and says where to look next.

One item that cannot be decided is an error page; of several, each has its line in a report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from werkzeug.datastructures import MultiDict

from shared import pauses
from shared.console import forms
from shared.console.access import Person
from shared.console.answers import Desk, Page, Redirect
from shared.console.forms import Target
from shared.errors import InvalidRequestError, sanitise
from shared.pauses import Kind
from shared.review import decide
from shared.review.decide import By, Item

Form = MultiDict[str, str]
KINDS: tuple[Kind, ...] = ("step", "tenant", "provider")


def replay(desk: Desk, form: Form, person: Person) -> Page | Redirect:
    """Queue one or many steps again, as their dry run showed."""
    by, mode, renew = _by(form, person), forms.mode_of(form), form.getlist("renew")
    lift, looked_at = "lift_deadline" in form, forms.seen(form)

    def act(target: Target) -> None:
        decide.replay(
            desk.database, desk.pipeline, target.id, str(target.step), looked_at[target], by,
            mode=mode, renew=renew, lift_deadline=lift,
        )  # fmt: skip

    return _each(looked_at, act, "replay", "queued again")


def resolve(desk: Desk, form: Form, person: Person) -> Page | Redirect:
    """Settle one step by evidence."""
    looked_at = forms.seen(form)
    if len(looked_at) != 1:
        raise InvalidRequestError("invalid-request", "one step is resolved at a time: each has its own evidence")
    ((target, seen),) = looked_at.items()
    declared = forms.declared(form)
    decide.resolve(
        desk.database, desk.pipeline, target.id, str(target.step), seen, _by(form, person),
        result=forms.result_of(form), effects=declared,
    )  # fmt: skip
    done = "resolve" if all(found.happened for found in declared.values()) else "absent"
    return Redirect(f"/operations/{target.id}?done={done}")


def discard(desk: Desk, form: Form, person: Person) -> Page | Redirect:
    """Give one or many steps up, or close a letter that belongs to none."""
    by = _by(form, person)
    if "item" in form:
        (letter,) = forms.targets(form)[:1]
        decide.discard_letter(desk.database, letter.id, by)
        return Redirect(f"/dead-letters/{letter.id}?done=discard")
    looked_at = forms.seen(form)

    def act(target: Target) -> None:
        decide.discard(desk.database, desk.pipeline, target.id, str(target.step), looked_at[target], by)

    return _each(looked_at, act, "discard", "given up")


def note(desk: Desk, form: Form, person: Person) -> Page | Redirect:
    """Write something down beside an operation, a step or a letter."""
    (target,) = forms.targets(form)[:1]
    by = _by(form, person)
    if form.get("of") == "letter":
        decide.note(desk.database, by, dead_letter_id=target.id)
        return Redirect(f"/dead-letters/{target.id}?done=note")
    decide.note(desk.database, by, operation_id=target.id, step=target.step)
    return Redirect(f"/operations/{target.id}?done=note")


def pause(desk: Desk, form: Form, person: Person) -> Page | Redirect:
    """Hold a step, tenant or provider back."""
    kind, name = _held(form)
    pauses.pause(desk.database, desk.pipeline, kind, name, person.name, _by(form, person).reason)
    return Redirect("/steps?done=pause")


def end_pause(desk: Desk, form: Form, person: Person) -> Page | Redirect:  # noqa: ARG001 - the log knows the actor
    """End a pause."""
    kind, name = _held(form)
    pauses.resume(desk.database, kind, name)
    return Redirect("/steps?done=resume")


def _each(chosen: Iterable[Target], act: Callable[[Target], None], done: str, words: str) -> Page | Redirect:
    items = list(chosen)
    if len(items) == 1:
        act(items[0])
        return Redirect(f"/operations/{items[0].id}?done={done}")
    report: list[Item[Target]] = decide.each(items, act)
    refused = sum(item.error is not None for item in report)
    return Page("report.html", {"report": report, "refused": refused, "done": words})


def _by(form: Form, person: Person) -> By:
    return By(person.name, form.get("reason", ""))


def _held(form: Form) -> tuple[Kind, str]:
    for kind in KINDS:
        if form.get("kind") == kind:
            return kind, sanitise(form.get("name", ""))
    raise InvalidRequestError("invalid-request", f"what is paused is one of {', '.join(KINDS)}")
