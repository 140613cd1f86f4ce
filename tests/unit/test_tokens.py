"""Tokens, against a real key and a real certificate server (cases 16, 47)."""

import base64
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from shared.errors import ForbiddenError, UnauthenticatedError, UnavailableError
from shared.token_certificates import Certificates
from shared.tokens import Claims, TokenVerifier

AUDIENCE = "https://invoice-record.example"
ACCOUNT = "push@project.iam.gserviceaccount.com"


class Key:
    """An RSA key with a self-signed certificate, as Google has."""

    def __init__(self, name: str) -> None:
        self.name = name
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "federated-signon")])
        builder = x509.CertificateBuilder(subject, subject, private.public_key(), 7)
        now = datetime.now(UTC)
        signed = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
        certificate = signed.sign(private, hashes.SHA256())
        self.certificate = certificate.public_bytes(serialization.Encoding.PEM).decode()
        pem = private.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        self.signer = crypt.RSASigner.from_string(pem.decode(), key_id=name)  # type: ignore[no-untyped-call]

    def sign(self, changed: dict[str, Any] | None = None) -> str:
        """Sign the claims of a good token, changed; a claim that is changed to ... is left out."""
        now = time.time()
        claims = {
            "iss": "https://accounts.google.com",
            "aud": AUDIENCE,
            "sub": "1234567890",
            "email": ACCOUNT,
            "email_verified": True,
            "iat": now,
            "exp": now + 3600,
        } | (changed or {})
        kept = {name: value for name, value in claims.items() if value is not ...}
        encoded: bytes = jwt.encode(self.signer, kept)  # type: ignore[no-untyped-call]
        return encoded.decode()


class CertificateServer(ThreadingHTTPServer):
    """Serves certificates, counting the requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.requests = 0
        self.status = 200
        self.cache_control = "public, max-age=3600, must-revalidate"
        self.body = b"{}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/certs"


class _Answer(BaseHTTPRequestHandler):
    server: CertificateServer

    def do_GET(self) -> None:
        self.server.requests += 1
        self.send_response(self.server.status)
        self.send_header("Cache-Control", self.server.cache_control)
        self.send_header("Content-Length", str(len(self.server.body)))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, *args: object) -> None:
        pass


class Clock:
    """A monotonic clock that the test moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def key() -> Key:
    return Key("key-1")


@pytest.fixture(scope="module")
def other_key() -> Key:
    return Key("key-2")


@pytest.fixture
def server(key: Key) -> Iterator[CertificateServer]:
    with CertificateServer() as server:
        server.body = json.dumps({key.name: key.certificate}).encode()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def verifier(server: CertificateServer) -> TokenVerifier:
    return TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url)


def test_a_good_token(verifier: TokenVerifier, server: CertificateServer, key: Key) -> None:
    claims = verifier.verify(f"Bearer {key.sign()}")
    assert isinstance(claims, Claims)
    assert (claims.email, claims.subject) == (ACCOUNT, "1234567890")
    assert claims.expires_at - claims.issued_at == 3600
    assert verifier.verify(f"bearer  {key.sign({'iss': 'accounts.google.com'})} ").email == ACCOUNT
    assert server.requests == 1


@pytest.mark.parametrize("seconds", [1, 9])
def test_case_16_a_token_issued_a_moment_in_the_future_is_accepted(
    verifier: TokenVerifier, key: Key, seconds: int
) -> None:
    assert verifier.verify(f"Bearer {key.sign({'iat': time.time() + seconds})}").email == ACCOUNT


@pytest.mark.parametrize("seconds", [20, 600, 10**12, 1e308])
def test_case_16_a_token_issued_further_in_the_future_is_refused(
    verifier: TokenVerifier, key: Key, seconds: float
) -> None:
    with pytest.raises(UnauthenticatedError):
        verifier.verify(f"Bearer {key.sign({'iat': time.time() + seconds})}")


def test_case_16_a_token_that_expired_a_moment_ago_is_accepted(verifier: TokenVerifier, key: Key) -> None:
    assert verifier.verify(f"Bearer {key.sign({'exp': time.time() - 5})}").email == ACCOUNT


WRONG = [
    {"aud": "https://another.example"},
    {"aud": [AUDIENCE]},
    {"aud": ""},
    {"aud": ...},
    {"iss": "https://accounts.example"},
    {"iss": ...},
    {"iss": ["https://accounts.google.com"]},
    {"exp": 0},
    {"exp": ...},
    {"exp": "9999999999"},
    {"exp": None},
    {"exp": float("nan")},
    {"exp": float("inf")},
    {"exp": True},
    {"exp": 10**400},
    {"exp": -1},
    {"iat": 10**4000},
    {"iat": ...},
    {"iat": "0"},
    {"iat": float("nan")},
    {"iat": {}},
    {"email": ...},
    {"email": ""},
    {"email": [ACCOUNT]},
    {"email_verified": False},
    {"email_verified": "true"},
    {"email_verified": 1},
    {"email_verified": ...},
    {"sub": ...},
]


@pytest.mark.parametrize("mode", ["signature", "platform"])
@pytest.mark.parametrize("changed", WRONG, ids=str)
def test_case_47_a_token_with_a_wrong_claim_is_refused(
    server: CertificateServer, key: Key, changed: dict[str, Any], mode: Any
) -> None:
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url, mode)
    with pytest.raises(UnauthenticatedError) as caught:
        verifier.verify(f"Bearer {key.sign(changed)}")
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize("mode", ["signature", "platform"])
def test_case_47_a_token_of_another_account_is_forbidden(server: CertificateServer, key: Key, mode: Any) -> None:
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url, mode)
    with pytest.raises(ForbiddenError):
        verifier.verify(f"Bearer {key.sign({'email': 'other@project.iam.gserviceaccount.com'})}")
    with pytest.raises(ForbiddenError):
        verifier.verify(f"Bearer {key.sign({'email': ACCOUNT.upper()})}")


def part(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic dXNlcjpwYXNz",
        "Bearer x",
        "Bearer a.b",
        "Bearer a.b.c",
        "Bearer a.b.c.d",
        "Bearer ..",
        "Bearer é.é.é",
        "Bearer a.b.c a.b.c",
        "Bearer " + "a" * 100_000,
        f"Bearer {part([])}.{part({})}.x",
        f"Bearer {part({'alg': 'none', 'kid': 'key-1'})}.{part({})}.",
        f"Bearer {part({'alg': 'HS256', 'kid': 'key-1'})}.{part({})}.AAAA",
        f"Bearer {part({'alg': 'ES256', 'kid': 'key-1'})}.{part({})}.AAAA",
        f"Bearer {part({'alg': ['RS256'], 'kid': 'key-1'})}.{part({})}.AAAA",
        f"Bearer {part({'alg': 'RS256'})}.{part({})}.AAAA",
        f"Bearer {part({'alg': 'RS256', 'kid': ['key-1']})}.{part({})}.AAAA",
        f"Bearer {part({'alg': 'RS256', 'kid': 'key-1'})}.{part([])}.AAAA",
        f"Bearer {part({'alg': 'RS256', 'kid': 'key-1'})}.{'W1tb' * 1900}.AAAA",
    ],
    ids=lambda header: str(header)[:40],
)
@pytest.mark.parametrize("mode", ["signature", "platform"])
def test_case_47_what_is_no_token_is_refused(server: CertificateServer, header: str | None, mode: Any) -> None:
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url, mode)
    with pytest.raises(UnauthenticatedError):
        verifier.verify(header)


def test_case_47_a_token_that_was_signed_or_changed_by_another_is_refused(
    verifier: TokenVerifier, key: Key, other_key: Key
) -> None:
    header, payload, signature = key.sign().split(".")
    forged = {"iss": "accounts.google.com", "aud": AUDIENCE, "sub": "1", "email": ACCOUNT, "email_verified": True}
    forged |= {"iat": time.time(), "exp": time.time() + 60}
    impostor = Key(key.name)
    for token in (
        f"{header}.{part(forged)}.{signature}",
        f"{header}.{payload}.{signature[:-8]}AAAAAAAA",
        f"{header}.{payload}.",
        f"{header}.{payload}.SIGNATURE_REMOVED_BY_GOOGLE",
        impostor.sign(),
        other_key.sign(),
    ):
        with pytest.raises(UnauthenticatedError):
            verifier.verify(f"Bearer {token}")


def test_behind_the_platform_a_removed_signature_is_accepted(key: Key) -> None:
    """No certificate is fetched: the URL leads nowhere."""
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), "http://127.0.0.1:1/", "platform")
    header, payload, _ = key.sign().split(".")
    for signature in ("SIGNATURE_REMOVED_BY_GOOGLE", ""):
        assert verifier.verify(f"Bearer {header}.{payload}.{signature}").email == ACCOUNT
    for seconds, accepted in ((1, True), (9, True), (600, False)):
        header, payload, _ = key.sign({"iat": time.time() + seconds}).split(".")
        if accepted:
            verifier.verify(f"Bearer {header}.{payload}.SIGNATURE_REMOVED_BY_GOOGLE")
        else:
            with pytest.raises(UnauthenticatedError, match="not yet valid"):
                verifier.verify(f"Bearer {header}.{payload}.SIGNATURE_REMOVED_BY_GOOGLE")


def test_no_accounts_means_none_and_any_must_be_said(server: CertificateServer, key: Key) -> None:
    with pytest.raises(ForbiddenError):
        TokenVerifier(AUDIENCE, frozenset(), server.url).verify(f"Bearer {key.sign()}")
    assert TokenVerifier(AUDIENCE, None, server.url).verify(f"Bearer {key.sign()}").email == ACCOUNT
    with pytest.raises(ValueError, match="audience"):
        TokenVerifier("", None, server.url)


def test_certificates_are_kept_as_long_as_they_may_be(server: CertificateServer, key: Key) -> None:
    clock = Clock()
    certificates = Certificates(server.url, monotonic=clock)
    for moved, requests in ((0, 1), (3599, 1), (1, 2), (3599, 2)):
        clock.now += moved
        assert certificates.for_key(key.name) == {key.name: key.certificate}
        assert server.requests == requests


@pytest.mark.parametrize("header", ["no-store", "max-age=0", "max-age=1", "s-maxage=5", "max-age=x", ""])
def test_certificates_are_kept_for_a_minute_whatever_the_server_says(
    server: CertificateServer, key: Key, header: str
) -> None:
    server.cache_control = header
    clock = Clock()
    certificates = Certificates(server.url, monotonic=clock)
    for moved, requests in ((0, 1), (59, 1), (1, 2)):
        clock.now += moved
        certificates.for_key(key.name)
        assert server.requests == requests


def test_an_unknown_key_asks_again_but_not_more_than_once_a_minute(
    server: CertificateServer, key: Key, other_key: Key
) -> None:
    clock = Clock()
    certificates = Certificates(server.url, monotonic=clock)
    certificates.for_key(key.name)
    server.body = json.dumps({other_key.name: other_key.certificate}).encode()
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            certificates.for_key(other_key.name)
    assert server.requests == 1
    clock.now += 60
    assert certificates.for_key(other_key.name) == {other_key.name: other_key.certificate}
    for _ in range(5):
        with pytest.raises(UnauthenticatedError):
            certificates.for_key("invented")
    assert server.requests == 2


def test_a_rotated_key_is_accepted_by_the_running_verifier(server: CertificateServer, key: Key, other_key: Key) -> None:
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url)
    server.body = json.dumps({key.name: key.certificate, other_key.name: other_key.certificate}).encode()
    assert verifier.verify(f"Bearer {key.sign()}") is not None
    assert verifier.verify(f"Bearer {other_key.sign()}").email == ACCOUNT


@pytest.mark.parametrize(
    ("status", "body"),
    [(500, b"{}"), (404, b""), (200, b"not json"), (200, b"[]"), (200, b'{"key-1":7}'), (200, b" " * 1_100_000)],
    ids=lambda part: repr(part)[:12],
)
def test_without_certificates_the_caller_is_asked_to_come_back(
    server: CertificateServer, key: Key, status: int, body: bytes
) -> None:
    good = server.body
    clock = Clock()
    certificates = Certificates(server.url, monotonic=clock)
    server.status, server.body = status, body
    for _ in range(2):
        with pytest.raises(UnavailableError):
            certificates.for_key(key.name)
    server.status, server.body = 200, good
    assert certificates.for_key(key.name) == {key.name: key.certificate}
    # When they cannot be renewed, the old ones serve on.
    server.status, server.body = status, body
    clock.now += 7200
    for _ in range(3):
        assert certificates.for_key(key.name) == {key.name: key.certificate}
    assert server.requests == 4


def test_a_server_that_is_not_there_is_unavailable(key: Key) -> None:
    with pytest.raises(UnavailableError):
        TokenVerifier(AUDIENCE, None, "http://127.0.0.1:1/").verify(f"Bearer {key.sign()}")


def test_many_threads_fetch_once(server: CertificateServer, key: Key) -> None:
    verifier = TokenVerifier(AUDIENCE, frozenset({ACCOUNT}), server.url)
    token = key.sign()
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.append(verifier.verify(f"Bearer {token}").email)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [ACCOUNT] * 8
    assert server.requests == 1
