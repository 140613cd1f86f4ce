"""Tokens of the local signer, verified by google-auth as the functions do it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests
from google.auth import exceptions
from google.auth.transport.requests import Request
from google.oauth2 import id_token

from local.pubsub import PubSubServer
from local.signing import ISSUER, KEY_FILE, CertificateServer, Signer, claims_of
from tests.conformance.cases import Backend
from tests.local.endpoint import Endpoint

EMAIL = "push@project.iam.gserviceaccount.com"
AUDIENCE = "https://render.example"


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer()


@pytest.fixture(scope="module")
def certificates(signer: Signer) -> Iterator[CertificateServer]:
    server = CertificateServer(signer)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def transport() -> Iterator[Request]:
    with requests.Session() as session:
        yield Request(session)


def test_token_verifies_with_googles_claims(
    signer: Signer, certificates: CertificateServer, transport: Request
) -> None:
    claims = id_token.verify_token(
        signer.id_token(EMAIL, AUDIENCE), transport, audience=AUDIENCE, certs_url=certificates.url
    )
    assert claims["iss"] == ISSUER
    assert claims["email"] == EMAIL
    assert claims["email_verified"] is True
    assert claims["aud"] == AUDIENCE
    assert claims["exp"] - claims["iat"] == 3600
    assert claims["sub"].isdecimal()


def test_certificates_are_keyed_by_kid(certificates: CertificateServer, signer: Signer) -> None:
    answer = requests.get(certificates.url, timeout=10)
    assert answer.headers["Cache-Control"].startswith("public, max-age=")
    assert list(answer.json()) == [signer.kid]
    assert answer.json()[signer.kid].startswith("-----BEGIN CERTIFICATE-----")


@pytest.mark.parametrize(
    "change", [{"aud": "https://other.example"}, {"exp": 1}, {"iat": 4_000_000_000, "exp": 4_000_003_600}]
)
def test_case_47_wrong_claims_do_not_verify(
    signer: Signer, certificates: CertificateServer, transport: Request, change: dict[str, object]
) -> None:
    token = signer.sign(claims_of(EMAIL, AUDIENCE, int(time.time())) | change)
    with pytest.raises((ValueError, exceptions.GoogleAuthError)):
        id_token.verify_token(token, transport, audience=AUDIENCE, certs_url=certificates.url)


def test_token_of_another_key_does_not_verify(certificates: CertificateServer, transport: Request) -> None:
    with pytest.raises((ValueError, exceptions.GoogleAuthError)):
        id_token.verify_token(
            Signer().id_token(EMAIL, AUDIENCE), transport, audience=AUDIENCE, certs_url=certificates.url
        )


def test_key_is_kept_in_its_folder(tmp_path: Path) -> None:
    first, again, other = Signer(tmp_path), Signer(tmp_path), Signer()
    assert first.kid == again.kid != other.kid
    assert (tmp_path / KEY_FILE).stat().st_mode & 0o777 == 0o600


def test_signers_made_at_once_share_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        signers = list(pool.map(lambda _: Signer(tmp_path), range(4)))
    assert len({signer.kid for signer in signers}) == 1
    assert [file.name for file in tmp_path.iterdir()] == [KEY_FILE]


def test_push_carries_a_token_for_its_account_and_audience(
    signer: Signer, certificates: CertificateServer, transport: Request
) -> None:
    server, endpoint = PubSubServer(signer=signer), Endpoint()
    backend = Backend("local", f"127.0.0.1:{server.start()}")
    push = {
        "push_endpoint": endpoint.url("/signed"),
        "oidc_token": {"service_account_email": EMAIL, "audience": AUDIENCE},
    }
    topic, _ = backend.pair("signed", push_config=push)
    backend.publish(topic, {"data": b"x"})
    scheme, _, token = endpoint.wait("/signed", 1)[0].headers["Authorization"].partition(" ")
    server.stop()
    endpoint.close()
    claims = id_token.verify_token(token, transport, audience=AUDIENCE, certs_url=certificates.url)
    assert (scheme, claims["email"]) == ("Bearer", EMAIL)
    assert json.dumps(claims)
