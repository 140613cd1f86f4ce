"""What the document and e-mail steps need to know of their surroundings."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr

from shared.addresses import is_email
from shared.settings import Duration, EnvironmentSettings, http_url

DEFAULT_PORTS = {"smtp": 25, "smtp+starttls": 587, "smtps": 465}


class MailServer(NamedTuple):
    """A mail server's address; `security` is "smtp" (plain text), "smtp+starttls" or "smtps"."""

    security: str
    host: str
    port: int
    user: str | None
    password: str | None


def _mail_server(url: str) -> MailServer:
    parts = urlsplit(url)
    if parts.scheme not in DEFAULT_PORTS or not parts.hostname or parts.port == 0:
        raise ValueError("is not the URL of a mail server")
    user = unquote(parts.username) if parts.username else None
    password = unquote(parts.password) if parts.password else None
    return MailServer(parts.scheme, parts.hostname, parts.port or DEFAULT_PORTS[parts.scheme], user, password)


def _smtp_url(secret: SecretStr) -> SecretStr:
    try:
        _mail_server(secret.get_secret_value())
    except ValueError:
        raise ValueError("is not the URL of a mail server") from None
    return secret


def _sender(text: str) -> str:
    if not is_email(text):
        raise ValueError("is not a plain e-mail address")
    return text


class StorageSettings(EnvironmentSettings):
    """Where documents are kept; with STORAGE_EMULATOR_HOST in a local server instead of Cloud Storage."""

    artifacts_bucket: str = Field(
        pattern=r"^[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]$", description="the name of a Cloud Storage bucket"
    )
    storage_emulator_host: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="the URL of a local server, for one's own machine only"
    )


class MailSettings(EnvironmentSettings):
    """Over which server e-mail is sent, from whom, and where it can be looked up what was sent.

    The sent log answers whether a Message-ID was accepted (docs/orders.md). Without one no second attempt can
    know, so it becomes unresolved.
    """

    smtp_url: Annotated[SecretStr, AfterValidator(_smtp_url)] = Field(
        description="smtp://, smtp+starttls:// or smtps:// and [user:password@]host[:port]"
    )
    mail_from: Annotated[str, AfterValidator(_sender)] = Field(description="the address that mail is sent from")
    sent_log_url: Annotated[str, AfterValidator(http_url)] | None = Field(
        None, description="the URL of the mail server's log of sent messages"
    )
    sent_log_delay: Duration = Field(
        timedelta(seconds=30), description="the longest time until an accepted message shows in it, like 30s"
    )

    def server(self) -> MailServer:
        """Take the mail server's URL apart."""
        return _mail_server(self.smtp_url.get_secret_value())
