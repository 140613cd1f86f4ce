"""Who may call, and what is never told: tokens signed by a real key, and a canary in what the database refuses."""

from __future__ import annotations

import base64
import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from local.signing import Signer, claims_of
from tests.database.kit import Kit
from tests.http.service import APP, AUDIENCE, OPERATIONS, Answer, Service

NOBODYS = f"{OPERATIONS}/00000000-0000-7000-8000-000000000000"
CANARY = "canary77aa"
_keys = itertools.count()
Token = Callable[[Signer], str]


def changed(**change: Any) -> Token:
    """A token whose claims are right but for these; None leaves a claim out."""

    def token(signer: Signer) -> str:
        claims = claims_of(APP, AUDIENCE, int(time.time())) | change
        return signer.sign({name: value for name, value in claims.items() if value is not None})

    return token


def shifted(seconds: int) -> Token:
    return lambda signer: signer.sign(claims_of(APP, AUDIENCE, int(time.time()) + seconds))


def unsigned(signer: Signer) -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none', 'kid': signer.kid})}.{part(claims_of(APP, AUDIENCE, int(time.time())))}."


def tampered(signer: Signer) -> str:
    head, _, signature = signer.id_token("stranger@project.iam.gserviceaccount.com", AUDIENCE).split(".")
    return f"{head}.{signer.id_token(APP, AUDIENCE).split('.')[1]}.{signature}"


REFUSED: dict[str, tuple[str, Token | None]] = {
    "absent": ("unauthenticated", None),
    "garbage": ("unauthenticated", lambda _: CANARY),
    "three parts of garbage": ("unauthenticated", lambda _: "canary77aa.canary77aa.canary77aa"),
    "the wrong audience": ("unauthenticated", changed(aud="https://render.example")),
    "a list of audiences": ("unauthenticated", changed(aud=[AUDIENCE])),
    "the wrong e-mail": ("forbidden", changed(email="stranger@project.iam.gserviceaccount.com")),
    "anonymous by name": ("forbidden", changed(email="anonymous")),
    "no e-mail": ("unauthenticated", changed(email=None)),
    "an e-mail that is not verified": ("unauthenticated", changed(email_verified=False)),
    "an e-mail that is verified in words": ("unauthenticated", changed(email_verified="true")),
    "nothing said of the e-mail": ("unauthenticated", changed(email_verified=None)),
    "expired": ("unauthenticated", shifted(-3700)),
    "no expiry": ("unauthenticated", changed(exp=None)),
    "ten minutes in the future": ("unauthenticated", shifted(600)),
    "another issuer": ("unauthenticated", changed(iss="https://accounts.example")),
    "another key": ("unauthenticated", lambda _: Signer().id_token(APP, AUDIENCE)),
    "no signature": ("unauthenticated", unsigned),
    "another token's signature": ("unauthenticated", tampered),
}


def counts(kit: Kit) -> list[int]:
    return [kit.value(f"SELECT count(*) FROM {table}") for table in ("identities", "operations", "steps", "outbox")]


def requests_of(service: Service, headers: list[tuple[str, str]]) -> list[Answer]:
    """Every kind of request with these headers."""
    body = {"type": "test.single", "input": {"secret": CANARY}}
    return [
        service.post(body, f"{CANARY}-{next(_keys)}", caller=None, headers=headers),
        service.get(OPERATIONS, headers, caller=None),
        service.get(NOBODYS, headers, caller=None),
        service.send("POST", f"{NOBODYS}:cancel", b"", headers, caller=None),
    ]


@pytest.mark.parametrize(("problem", "token"), REFUSED.values(), ids=REFUSED)
def test_case_47_a_token_that_is_not_right_is_refused_and_writes_nothing(
    service: Service, kit: Kit, signer: Signer, problem: str, token: Token | None
) -> None:
    before, log = counts(kit), len(service.log())
    sent = "" if token is None else token(signer)
    answers = requests_of(service, [("Authorization", f"Bearer {sent}")] if token else [])
    assert {answer.problem for answer in answers} == {problem}
    assert counts(kit) == before
    told = service.log()[log:] + "".join(str(answer.body) + str(answer.headers) for answer in answers)
    assert CANARY not in told
    assert not sent or sent not in told


@pytest.mark.parametrize("scheme", ["Basic", "bearer  x", "", "Token"])
def test_case_47_another_scheme_is_refused(service: Service, signer: Signer, scheme: str) -> None:
    header = f"{scheme} {signer.id_token(APP, AUDIENCE)}".strip()
    assert {answer.status for answer in requests_of(service, [("Authorization", header)])} == {401}


def test_case_16_a_token_from_the_near_future_is_accepted(service: Service, signer: Signer) -> None:
    for seconds in (1, 8):  # ten are allowed
        assert (
            service.get(OPERATIONS, [("Authorization", f"Bearer {shifted(seconds)(signer)}")], caller=None).status
            == 200
        )


def test_case_47_what_is_wrong_with_a_request_is_not_told_to_a_stranger(service: Service) -> None:
    assert service.send("POST", OPERATIONS, b"{", caller=None).problem == "unauthenticated"
    assert service.get(f"{OPERATIONS}?state=x", caller=None).problem == "unauthenticated"
    assert service.get(f"{OPERATIONS}/x", caller=None).problem == "unauthenticated"
    assert service.get("/v1/tenants/Shop/operations", caller=None).problem == "unauthenticated"


@pytest.fixture
def refusing_database(kit: Kit) -> Iterator[None]:
    """A database that refuses an operation by the way its input names, and quotes the input in its message."""
    kit.query("CREATE UNIQUE INDEX forced_23505 ON operations ((input ->> 'unique')) WHERE input ->> 'unique' <> ''")
    kit.query("ALTER TABLE operations ADD CONSTRAINT forced_23514 CHECK (coalesce(input ->> 'check', '') = '')")
    kit.query("""
        CREATE FUNCTION forced() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF NEW.input ->> 'null' <> '' THEN NEW.type = NULL; END IF;
            IF NEW.input ->> 'cast' <> '' THEN NEW.steps_left = CAST(NEW.input ->> 'cast' AS int); END IF;
            IF NEW.input ->> 'raise' <> '' THEN RAISE EXCEPTION 'refused %', NEW.input; END IF;
            RETURN NEW;
        END $$
    """)
    kit.query("CREATE TRIGGER forced BEFORE INSERT ON operations FOR EACH ROW EXECUTE FUNCTION forced()")
    yield
    kit.query("DROP TRIGGER forced ON operations")
    kit.query("DROP FUNCTION forced")
    kit.query("ALTER TABLE operations DROP CONSTRAINT forced_23514")
    kit.query("DROP INDEX forced_23505")


@pytest.mark.parametrize(
    ("how", "sqlstate"),
    [("null", "23502"), ("unique", "23505"), ("check", "23514"), ("cast", "22P02"), ("raise", "P0001")],
)
def test_case_49_what_the_database_refuses_is_told_without_what_was_sent(
    service: Service, kit: Kit, refusing_database: None, how: str, sqlstate: str
) -> None:
    body = {"type": "test.single", "input": {how: CANARY}}
    if how == "unique":
        assert service.post(body, f"first-{next(_keys)}").status == 202
    before, log = counts(kit), len(service.log())
    answer = service.post(body, f"{CANARY}-{next(_keys)}")
    assert (answer.status, answer.problem) == (500, "internal")
    assert counts(kit) == before
    logged = service.log()[log:]
    assert sqlstate in logged
    assert CANARY not in logged + str(answer.body) + str(answer.headers)
    assert "Traceback" not in logged


def test_case_49_what_is_accepted_is_logged_and_listed_without_its_input(service: Service) -> None:
    log, key = len(service.log()), f"plain-{next(_keys)}"
    accepted = service.post({"type": "test.single", "input": {"secret": CANARY}}, key)
    refused = service.post({"type": "test.single", "input": {"secret": f"{CANARY}-2"}}, key)
    told = [accepted, refused, service.get(accepted.headers["Location"]), service.get(OPERATIONS)]
    assert refused.json["fields"] == ["/input/secret"]
    assert CANARY not in service.log()[log:] + "".join(str(answer.body) for answer in told)
