"""The console as a real process before a real database, and people whom Identity-Aware Proxy lets in."""

from __future__ import annotations

import http.client
import re
import sys
import time
import urllib.parse
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.auth import jwt
from google.auth.crypt import es

from local.logins import make_logins
from local.parts import Part
from local.postgres import free_port
from local.signing import CertificateServer, Signer
from shared.console.access import ASSERTION, ISSUER
from shared.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[2]
AUDIENCE = "/projects/1234/locations/europe-west2/services/console"
ADA = "ada@example.com"  # operator
EVE = "eve@example.com"  # operator
VAL = "val@example.com"  # viewer
STRANGER = "mallory@example.com"
ABSENT = "01900000-0000-7000-8000-000000000000"  # an id of nothing
SECRET = "a secret of the tests, forty characters long"


class Iap:
    """Signs assertions as Identity-Aware Proxy does, with a key of its own."""

    def __init__(self, kid: str = "iap-1") -> None:
        self.kid = kid
        self.key = ec.generate_private_key(ec.SECP256R1())
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.certificates = {kid: public.decode()}
        self._signer = es.EsSigner.from_string(pem, key_id=kid)

    def server(self) -> CertificateServer:
        """What serves the public key, as Google does."""
        return CertificateServer(cast(Signer, self))

    def claims(self, who: str, **other: Any) -> dict[str, Any]:
        now = int(time.time())
        usual = {"iss": ISSUER, "aud": AUDIENCE, "sub": "accounts.google.com:1", "iat": now, "exp": now + 600}
        return usual | {"email": who} | other

    def sign(self, claims: Mapping[str, Any], header: Mapping[str, Any] | None = None) -> str:
        token: bytes = jwt.encode(self._signer, dict(claims), dict(header or {}))  # type: ignore[no-untyped-call]
        return token.decode()

    def assertion(self, email: str) -> str:
        return self.sign(self.claims(email))


@dataclass(frozen=True)
class Answer:
    """What the console answered."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def title(self) -> str:
        match = re.search(r"<h1>(.*?)</h1>", self.text, re.DOTALL)
        assert match, self.text[:500]
        return re.sub(r"<[^>]*>", "", match[1]).strip()

    @property
    def forms(self) -> list[Form]:
        reader = _Forms()
        reader.feed(self.text)
        return reader.forms

    def form(self, action: str) -> Form:
        """The one form that posts there."""
        (found,) = self.forms_of(action)
        return found

    def forms_of(self, action: str) -> list[Form]:
        """Every form that posts there."""
        return [form for form in self.forms if form.action == action and form.method == "post"]


@dataclass
class Form:
    """A form as it came, and what a browser would send of it."""

    action: str
    method: str
    fields: list[tuple[str, str]] = field(default_factory=list)

    def filled(self, **values: str) -> list[tuple[str, str]]:
        return [*self.fields, *values.items()]


class _Forms(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.forms: list[Form] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self.forms.append(Form(given["action"], given["method"]))
        if tag == "input" and given.get("type") == "hidden":
            self.forms[-1].fields.append((given["name"], given["value"]))


@dataclass
class Service:
    """One console process."""

    iap: Iap
    part: Part
    port: int
    log_file: Path
    env: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def send(
        self, method: str, target: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Send one request, just as it is given."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, target, body, dict(headers or {}))
        response = connection.getresponse()
        answer = Answer(response.status, dict(response.getheaders()), response.read().decode())
        connection.close()
        return answer

    def get(self, target: str, who: str | None = ADA) -> Answer:
        return self.send("GET", target, headers=self.identity(who))

    def post(
        self,
        target: str,
        fields: Iterable[tuple[str, str]],
        who: str | None = ADA,
        headers: Mapping[str, str | None] | None = None,
    ) -> Answer:
        """Send a form as a browser on the console's own page does; a header that is None is left out."""
        usual = {
            "Content-Type": "application/x-www-form-urlencoded",
            "Origin": self.url,
            "Sec-Fetch-Site": "same-origin",
        }
        every = self.identity(who) | usual | dict(headers or {})
        body = urllib.parse.urlencode(list(fields)).encode()
        return self.send("POST", target, body, {name: value for name, value in every.items() if value is not None})

    def identity(self, who: str | None) -> dict[str, Any]:
        return {} if who is None else {ASSERTION: self.iap.assertion(who)}

    def token(self, who: str = ADA) -> str:
        """The token that a person's forms carry."""
        return dict(self.get("/steps", who).forms_of("/pauses")[0].fields)["token"]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")

    def wait(self) -> None:
        """Wait until it serves: the port is open before the function is loaded."""
        self.part.wait_for_port(self.port)
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                self.get("/assets/icon.svg", None)
            except (OSError, http.client.HTTPException):
                time.sleep(0.05)
            else:
                return
        raise self.part.failed("does not answer")

    def stop(self) -> None:
        self.part.terminate()
        self.part.wait_stopped()


def service_for(
    database_url: str, iap: Iap, keys_url: str, pipeline_file: Path, folder: Path, **environment: str
) -> Service:
    """Start the console before a database, under its role.

    `environment` adds to its settings or, with an empty value, takes away.
    """
    port = free_port()
    login = "" if "DATABASE_URL" in environment else make_logins(database_url, Pipeline.load(pipeline_file))["console"]
    env = {
        "DATABASE_URL": login,
        "GOOGLE_CLOUD_PROJECT": "echoproof-test",
        "PIPELINE_FILE": str(pipeline_file),
        "CONSOLE_AUDIENCE": AUDIENCE,
        "CONSOLE_KEYS_URL": keys_url,
        "CONSOLE_OPERATORS": f"{ADA},{EVE}",
        "CONSOLE_VIEWERS": VAL,
        "CONSOLE_SECRET": SECRET,
        "THREADS": "8",
        "POOL_SIZE": "8",
        "LOCK_TIMEOUT": "4s",  # a test waits for it
        "PYTHONPATH": str(ROOT),
    } | environment
    source = str(ROOT / "functions/console/main.py")
    command = ["-m", "functions_framework", "--source", source, "--target", "main", "--host", "127.0.0.1"]
    log = folder / f"console-{port}.log"
    part = Part("console", [sys.executable, *command, "--port", str(port)], env, log)
    service = Service(iap, part, port, log, env)
    part.start()
    service.wait()
    return service
