"""Google-style ID tokens from a key of one's own, and the certificates that verify them.

The functions verify push tokens locally by the same code as in production: only the address of the
certificates differs (`google.oauth2.id_token.verify_token(…, certs_url=…)`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import secrets
import time
from typing import TYPE_CHECKING, Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth import crypt, jwt

from local.serving.host import PortInUseError, Server

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

ISSUER = "https://accounts.google.com"
LIFETIME = 3600  # seconds; as Google's
RENEW_BEFORE = 300  # seconds of life left below which a kept token is minted anew
CERTS_PATH = "/oauth2/v1/certs"  # as on www.googleapis.com
CERTS_MAX_AGE = 3600  # seconds that a verifier may keep the certificates
KEY_FILE = "signing-key.pem"


class Signer:
    """An RSA key that signs ID tokens.

    With a folder the key is kept there (mode 0600) and found again by the next run; without, it is new.
    """

    def __init__(self, folder: Path | None = None) -> None:
        key = _load_or_make(folder)
        public = key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.kid = hashlib.sha256(public).hexdigest()[:40]
        self.certificates = {self.kid: _certificate(key)}
        self._signer = crypt.RSASigner.from_string(  # type: ignore[no-untyped-call]
            _pem(key), key_id=self.kid
        )
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}

    def id_token(self, email: str, audience: str) -> str:
        """Return a token of a service account for an audience, valid for five minutes to an hour."""
        kept = self._kept.get((email, audience))
        now = time.time()
        if kept is None or kept[0] < now + RENEW_BEFORE:
            kept = (now + LIFETIME, self.sign(claims_of(email, audience, int(now))))
            self._kept[email, audience] = kept
        return kept[1]

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return a token with just these claims (RS256), also wrong ones: for tests of a verifier."""
        token: bytes = jwt.encode(self._signer, dict(claims))  # type: ignore[no-untyped-call]
        return token.decode("ascii")


def claims_of(email: str, audience: str, issued: int) -> dict[str, Any]:
    """Return the claims of Google's ID token for a service account; `issued` is in seconds since 1970."""
    subject = str(int.from_bytes(hashlib.sha256(email.encode()).digest()[:8], "big")).zfill(21)[:21]
    return {
        "aud": audience,
        "azp": subject,
        "email": email,
        "email_verified": True,
        "exp": issued + LIFETIME,
        "iat": issued,
        "iss": ISSUER,
        "sub": subject,
    }


class CertificateServer(Server):
    """Serves a signer's certificates over HTTP as `{kid: PEM certificate}`, as Google's oauth2/v1/certs."""

    def __init__(self, signer: Signer) -> None:
        self._body = json.dumps(signer.certificates).encode()
        self._runner: web.AppRunner | None = None
        self.url = ""

    async def open(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; return the port. `url` is then the address of the certificates. Raises PortInUseError."""
        application = web.Application()
        application.router.add_get(CERTS_PATH, self._certificates)
        self._runner = web.AppRunner(application, access_log=None)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port).start()
        except OSError as error:
            await self.close()
            raise PortInUseError(f"Port {port} of {host} is already in use") from error
        bound: int = self._runner.addresses[0][1]
        self.url = f"http://{host}:{bound}{CERTS_PATH}"
        return bound

    async def close(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _certificates(self, _request: web.Request) -> web.Response:
        headers = {"Cache-Control": f"public, max-age={CERTS_MAX_AGE}"}
        return web.Response(body=self._body, content_type="application/json", headers=headers)


def _load_or_make(folder: Path | None) -> rsa.RSAPrivateKey:
    file = None if folder is None else folder / KEY_FILE
    if file is not None and file.exists():
        key = serialization.load_pem_private_key(file.read_bytes(), password=None)
        if isinstance(key, rsa.RSAPrivateKey):
            return key
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        fresh = file.with_suffix(f".{secrets.token_hex(8)}")
        fresh.touch(mode=0o600)
        fresh.write_bytes(_pem(key))
        try:
            os.link(fresh, file)  # whole or not at all, and only one of two processes makes it
        except FileExistsError:
            return _load_or_make(folder)
        finally:
            fresh.unlink()
    return key


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _certificate(key: rsa.RSAPrivateKey) -> str:
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "local-signer")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=365))
        .sign(key, hashes.SHA256())
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode("ascii")
