"""What the document and e-mail steps need to know of their surroundings, read once from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from shared.errors import ConfigError
from shared.invoicing.fields import is_email

DEFAULT_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}
_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]", re.ASCII)


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """Where documents are kept; `emulator` is the base URL of a local server, or None for Cloud Storage."""

    bucket: str
    emulator: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> StorageSettings:
        """Read ARTIFACTS_BUCKET and STORAGE_EMULATOR_HOST; raises ConfigError."""
        bucket = environment.get("ARTIFACTS_BUCKET", "")
        if not _BUCKET.fullmatch(bucket):
            raise ConfigError(["ARTIFACTS_BUCKET must be the name of a Cloud Storage bucket"])
        return cls(bucket, environment.get("STORAGE_EMULATOR_HOST") or None)


@dataclass(frozen=True, slots=True, repr=False)
class MailSettings:
    """How e-mail is sent: over which server, from whom, and where it can be looked up.

    `security` is "smtp" (plain text), "smtp+starttls" or "smtps". `sent_log` answers whether a Message-ID was
    accepted (docs/orders.md); without one, a second attempt cannot know and becomes unresolved.
    """

    security: str
    host: str
    port: int
    sender: str
    user: str | None = None
    password: str | None = None
    sent_log: str | None = None

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> MailSettings:
        """Read SMTP_URL, MAIL_FROM and SENT_LOG_URL; raises ConfigError that lists every problem."""
        sender = environment.get("MAIL_FROM", "")
        sent_log = environment.get("SENT_LOG_URL") or None
        problems = []
        if not is_email(sender):
            problems.append("MAIL_FROM must be the e-mail address that mail is sent from")
        if sent_log and urlsplit(sent_log).scheme not in ("http", "https"):
            problems.append("SENT_LOG_URL must be an http or https URL")
        server = _server(environment.get("SMTP_URL", ""))
        if not server:
            problems.append("SMTP_URL must be smtp://, smtp+starttls:// or smtps:// [user:password@]host[:port]")
        if problems or not server:
            raise ConfigError(problems)
        return cls(*server[:3], sender, *server[3:], sent_log)


def _server(url: str) -> tuple[str, str, int, str | None, str | None] | None:
    """Read (security, host, port, user, password), or None when the URL is not one of a mail server."""
    try:
        parts = urlsplit(url)
        port = parts.port or DEFAULT_PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    if not parts.hostname:
        return None
    user = unquote(parts.username) if parts.username else None
    return parts.scheme, parts.hostname, port, user, unquote(parts.password) if parts.password else None
