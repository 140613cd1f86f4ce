"""The decisions through their forms: what was seen travels along, each lands once, several are reported one by one."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID, uuid4

import pytest

from shared import steps
from tests.console.kit import ABSENT, ADA, EVE, Answer, Form, Service
from tests.console.shop import Shop


def looked_at(service: Service, *operations: UUID, more: str = "", who: str = ADA) -> Answer:
    answer = service.get("/review?" + "&".join(f"item={operation}/only" for operation in operations) + more, who)
    assert answer.status == 200
    return answer


def replay(service: Service, form: Form, who: str = ADA, reason: str = "the bank is back") -> Answer:
    return service.post("/review/replay", form.filled(reason=reason), who)


def test_a10_looked_at_replayed_with_a_reason_and_succeeded_without_a_second_effect(
    service: Service, shop: Shop
) -> None:
    operation_id, paid = shop.unresolved(), shop.paid
    dry = looked_at(service, operation_id)
    assert "the same bytes under the same key" in dry.text
    assert shop.states(operation_id) == {"only": "unresolved"}
    done = replay(service, dry.form("/review/replay"))
    assert (done.status, done.headers["Location"]) == (303, f"/operations/{operation_id}?done=replay")
    assert "Queued again." in service.get(done.headers["Location"]).text
    assert shop.run(operation_id) == "succeeded"
    assert shop.paid == paid + 1
    assert shop.audit(operation_id) == [[ADA, "replay", "resume", "the bank is back"]]


def test_case_63_a_replay_on_a_dry_run_that_has_aged_is_412(service: Service, shop: Shop) -> None:
    operation_id = shop.unresolved()
    form = looked_at(service, operation_id).form("/review/replay")
    shop.query(f"UPDATE effects SET lookups = lookups + 1, version = version + 1 WHERE operation_id = '{operation_id}'")
    aged = replay(service, form)
    assert (aged.status, aged.title) == (412, "This has changed meanwhile")
    assert shop.states(operation_id) == {"only": "unresolved"}
    assert shop.audit(operation_id) == []


def test_case_44_two_operators_press_replay_together(service: Service, shop: Shop) -> None:
    operation_id = shop.unresolved()
    forms = {who: looked_at(service, operation_id, who=who).form("/review/replay") for who in (ADA, EVE)}
    together = threading.Barrier(2)

    def press(who: str) -> int:
        together.wait()
        return replay(service, forms[who], who).status

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(press, (ADA, EVE))) == [303, 409]
    assert len(shop.audit(operation_id)) == 1
    assert shop.run(operation_id) == "succeeded"
    again = replay(service, forms[ADA])
    assert (again.status, again.title) == (409, "Not possible now")
    assert "succeeded" in again.text


def test_the_modes_show_and_do_what_they_say(service: Service, shop: Shop) -> None:
    asked, refused = shop.unresolved(), shop.declined()
    first = looked_at(service, asked, more="&mode=reconcile_first")
    assert "it is looked up first" in first.text
    assert replay(service, first.form("/review/replay")).status == 303
    assert shop.audit(asked)[0][2] == "reconcile_first"
    unnamed = looked_at(service, refused, more="&mode=new_generation")
    assert "name the effects that get a new generation" in unnamed.text
    assert [form for form in unnamed.forms if form.action == "/review/replay"] == []
    named = looked_at(service, refused, more="&mode=new_generation&renew=effect")
    assert "it is sent under a fresh key" in named.text
    assert replay(service, named.form("/review/replay")).status == 303
    assert shop.run(refused) == "succeeded"


def test_a_step_is_resolved_by_evidence_for_each_effect(service: Service, shop: Shop) -> None:
    operation_id = shop.unresolved()
    form = looked_at(service, operation_id).form("/review/resolve")
    silent = service.post("/review/resolve", form.filled(reason="asked the bank"))
    assert (silent.status, "say of each open effect" in silent.text.lower()) == (409, True)
    wrong = form.filled(reason="asked the bank", **{"outcome-0": "happened"}, result="[1]")
    assert service.post("/review/resolve", wrong).status == 400
    told = form.filled(
        reason="asked the bank", **{"outcome-0": "happened", "reference-0": "pi_1"}, result='{"paid": true}'
    )
    assert service.post("/review/resolve", told).status == 303
    assert shop.states(operation_id) == {"only": "succeeded"}
    assert shop.effect(operation_id)["evidence"] == "review"
    assert shop.audit(operation_id) == [[ADA, "resolve", None, "asked the bank"]]


def test_an_effect_that_did_not_happen_leaves_the_step_to_be_replayed(service: Service, shop: Shop) -> None:
    operation_id = shop.unresolved()
    form = looked_at(service, operation_id).form("/review/resolve")
    told = service.post("/review/resolve", form.filled(reason="the bank has nothing", **{"outcome-0": "absent"}))
    assert told.headers["Location"].endswith("done=absent")
    assert shop.states(operation_id) == {"only": "unresolved"}
    assert "it is known not to have happened" in looked_at(service, operation_id).text


def test_a_step_is_discarded_and_noted(service: Service, shop: Shop) -> None:
    operation_id = shop.failed()
    page = looked_at(service, operation_id)
    assert service.post("/review/note", page.form("/review/note").filled(reason="asked Bob")).status == 303
    assert service.post("/review/discard", page.form("/review/discard").filled(reason="  ")).status == 400
    assert service.post("/review/discard", page.form("/review/discard").filled(reason="a duplicate")).status == 303
    assert shop.states(operation_id) == {"only": "discarded"}
    assert [row[1] for row in shop.audit(operation_id)] == ["note", "discard"]
    shown = service.get(f"/operations/{operation_id}").text
    assert "asked Bob" in shown
    assert "a duplicate" in shown


def test_a_letter_of_no_operation_is_noted_and_closed_once(service: Service, shop: Shop) -> None:
    letter = shop.value(
        "INSERT INTO dead_letters (digest, cause, raw) "
        "VALUES (sha256(uuidv7()::text::bytea), 'malformed', '<b>%%%</b>') RETURNING id"
    )
    page = service.get(f"/dead-letters/{letter}")
    assert "&lt;b&gt;%%%&lt;/b&gt;" in page.text
    assert service.post("/review/note", page.form("/review/note").filled(reason="from the old app")).status == 303
    assert service.post("/review/discard", page.form("/review/discard").filled(reason="seen")).status == 303
    assert service.post("/review/discard", page.form("/review/discard").filled(reason="seen")).status == 409
    assert "from the old app" in service.get(f"/dead-letters/{letter}").text


def test_of_several_each_is_reported_and_what_cannot_be_done_keeps_none_from_it(service: Service, shop: Shop) -> None:
    operations = [shop.failed() for _ in range(4)]
    form = looked_at(service, *operations).form("/review/replay")
    shop.query(f"UPDATE steps SET generation = generation + 1 WHERE operation_id = '{operations[0]}'")
    assert replay(service, looked_at(service, operations[1]).form("/review/replay"), EVE).status == 403
    assert replay(service, looked_at(service, operations[1]).form("/review/replay")).status == 303
    report = replay(service, form)
    assert (report.status, report.title) == (200, "Report")
    assert "2 of 4 queued again, 2 not." in report.text
    assert "have changed since the dry run" in report.text
    assert "the step is queued" in report.text
    assert [shop.states(operation)["only"] for operation in operations] == ["failed", "queued", "queued", "queued"]


def test_several_are_discarded_at_once(service: Service, shop: Shop) -> None:
    operations = [shop.failed() for _ in range(3)]
    form = looked_at(service, *operations).form("/review/discard")
    assert "3 of 3 given up." in service.post("/review/discard", form.filled(reason="a test run")).text
    assert {shop.states(operation)["only"] for operation in operations} == {"discarded"}


def test_a_dry_run_of_several_says_which_cannot_be_replayed(service: Service, shop: Shop) -> None:
    able, done = shop.failed(), shop.accept(key="done").operation_id
    held = shop.claimed(shop.dispatches(done)[0])
    steps.succeed(shop.database, held, None)
    page = looked_at(service, able, done, uuid4())
    assert "1 of 3 can be replayed" in page.text
    assert [name for name, _ in page.form("/review/replay").fields].count("seen") == 1


@pytest.mark.parametrize(
    "query", ["", "item=nothing", f"item={ABSENT}/only;x", "mode=resume", f"item={ABSENT}/only&mode=boldly"]
)
def test_a_dry_run_of_nothing_in_particular_is_refused(service: Service, query: str) -> None:
    assert service.get(f"/review?{query}").status == 400


def test_a_dry_run_of_what_is_not_there_is_404(service: Service) -> None:
    assert service.get(f"/review?item={uuid4()}/only").status == 404
    assert service.get(f"/review?item={uuid4()}").status in (200, 404)


@pytest.mark.parametrize(
    "seen", ["", "x:1:1", f"{ABSENT}/only:1", f"{ABSENT}/only:-1:1", f"{ABSENT}/only:1:99999999999999999999"]
)
def test_a_form_that_is_not_ours_is_refused(service: Service, shop: Shop, seen: str) -> None:
    token = service.token()
    answer = service.post("/review/replay", [("token", token), ("reason", "because"), ("seen", seen)])
    assert answer.status == 400


def test_a_step_a_provider_and_a_tenant_are_paused_and_resumed(service: Service, shop: Shop) -> None:
    token = service.token()
    for kind, name in (("step", "test.line/first"), ("provider", "payments"), ("tenant", "branch")):
        fields = [("token", token), ("kind", kind), ("name", name)]
        assert service.post("/pauses", [*fields, ("reason", "the bank moves")]).status == 303
        assert service.post("/pauses", [*fields, ("reason", "the bank moves")]).status == 409
        assert "the bank moves" in service.get("/steps").text
        assert name in service.get("/").text
        assert service.post("/pauses/end", fields).status == 303
        assert service.post("/pauses/end", fields).status == 404
    fields = [("token", token), ("reason", "because")]
    assert service.post("/pauses", [*fields, ("kind", "step"), ("name", "no/such")]).status == 400
    assert service.post("/pauses", [*fields, ("kind", "world"), ("name", "all")]).status == 400
    assert service.post("/pauses/end", [*fields, ("kind", "tenant"), ("name", "a\x00b")]).status == 404
