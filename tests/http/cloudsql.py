"""A Cloud SQL instance on this machine: the Admin API that hands out certificates, and the proxy that wants them."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID

NAME = "project:region:instance"
PORT = 3307  # where every Cloud SQL proxy listens; each of these has an address of its own
LIFETIME = timedelta(hours=1)
CHUNK = 65_536


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


class CloudSql:
    """One instance before a PostgreSQL on 127.0.0.1; `lifetime` is that of the certificates it hands out next."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.lifetime = LIFETIME
        self.refreshes = 0
        self.refusing = False
        self.address = f"127.{random.randrange(1, 250)}.{random.randrange(1, 250)}.1"
        self._upstream = upstream
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._ca = self._certify("ca", self._key.public_key(), ca=True)
        self._listener = socket.create_server((self.address, PORT))
        self._tls = self._context(folder)
        threading.Thread(target=self._accept, daemon=True).start()
        self._api = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        threading.Thread(target=self._api.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._api.server_address[1]}"
        self.credentials = folder / "account.json"
        self.credentials.write_text(json.dumps(self._account()))

    def close(self) -> None:
        self._api.shutdown()
        self._api.server_close()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _certify(self, common: str, key: Any, *, ca: bool = False) -> x509.Certificate:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(common))
            .issuer_name(_name("ca"))
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + (LIFETIME if ca else self.lifetime))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        return builder.sign(self._key, hashes.SHA256())

    def _context(self, folder: Path) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        (folder / "ca.pem").write_bytes(_pem(self._ca))
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (folder / "server.pem").write_bytes(private + _pem(self._certify("server", key.public_key())))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem")
        context.load_verify_locations(folder / "ca.pem")
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _account(self) -> dict[str, str]:
        key = rsa.generate_private_key(public_exponent=65_537, key_size=2048)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        email = "step@project.iam.gserviceaccount.com"
        return {"type": "service_account", "client_email": email, "private_key": private.decode(),
                "token_uri": f"{self.url}/token", "project_id": "project", "private_key_id": "1"}  # fmt: skip

    def answer(self, path: str, body: bytes) -> dict[str, Any]:
        """Answer one request to the Admin API, or for a token."""
        if path == "/token":
            return {"access_token": "token", "expires_in": 3600, "token_type": "Bearer"}
        if path.endswith("/connectSettings"):
            return {
                "region": "region",
                "databaseVersion": "POSTGRES_18",
                "ipAddresses": [{"type": "PRIVATE", "ipAddress": self.address}],
                "serverCaCert": {"cert": _pem(self._ca).decode()},
            }
        self.refreshes += 1
        asked = json.loads(body)
        assert asked["access_token"] == "token"
        key = serialization.load_pem_public_key(asked["public_key"].encode())
        return {"ephemeralCert": {"cert": _pem(self._certify("client", key)).decode()}}

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        instance = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                told = json.dumps(instance.answer(self.path, body)).encode()
                self.send_response(403 if instance.refusing else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(told)))
                self.end_headers()
                self.wfile.write(told)

            def do_GET(self) -> None:
                self.do_POST()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        return Handler

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            contextlib.suppress(OSError),
            client,
            self._tls.wrap_socket(client, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", self._upstream)) as server,
        ):
            answers = threading.Thread(target=_pump, args=(server, secure), daemon=True)
            answers.start()
            _pump(secure, server)
            answers.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
