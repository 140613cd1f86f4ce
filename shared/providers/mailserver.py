"""Sends over SMTP, which is not idempotent, and asks a sent log what was sent."""

from __future__ import annotations

import contextlib
import json
import smtplib
import ssl
from typing import Any, cast
from urllib.parse import quote

from shared.errors import PermanentError, UnavailableError
from shared.providers.http import NoAnswerError, NotReachedError, exchange
from shared.providers.message import Mail
from shared.providers.settings import MailSettings
from shared.providers.sockets import Deadline, Stream, connect

TIMEOUT = 15.0  # seconds for each answer of the mail server
DEADLINE = 30.0  # seconds for the whole conversation, however slowly it drips; below the step's timeout
LOOKUP_TIMEOUT = 10.0  # seconds to ask the sent log


class MailRefusedError(PermanentError):
    """The mail server refuses this message for good."""


class MailNotSentError(UnavailableError):
    """The message was not accepted, and nothing was sent."""


class MailOutcomeUnknownError(UnavailableError):
    """The mail server may have accepted the message; its answer was lost."""


class SentLogUnavailableError(UnavailableError):
    """The sent log did not answer, so it is not known whether the message was sent."""


def send(settings: MailSettings, mail: Mail) -> None:
    """Hand one message to the mail server; returns when the server has accepted it.

    Raises MailNotSentError (nothing happened: connection refused, a temporary no), MailRefusedError (a
    definite no) or MailOutcomeUnknownError (the answer to the message itself was lost). None of them holds an
    address or the server's text, which may quote one.
    """
    try:
        server = _connect(settings)
    except smtplib.SMTPAuthenticationError as error:
        raise MailNotSentError(f"the mail server refused the login ({error.smtp_code})") from None
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise MailNotSentError(f"the mail server cannot be reached ({type(error).__name__})") from None
    with contextlib.closing(server):
        _transfer(server, mail)
        with contextlib.suppress(OSError, smtplib.SMTPException, ValueError):
            server.quit()  # a courtesy: the message has been accepted, whatever happens to this


def was_sent(settings: MailSettings, message_id: str) -> bool:
    """Ask the sent log whether a message was accepted, by its Message-ID.

    Only the log's own answer counts as absence: a 404 whose JSON says that it was received zero times; any
    other 404 may be a wrong URL. Raises SentLogUnavailableError for everything else.
    """
    url = f"{settings.sent_log_url}/messages/{quote(message_id, safe='')}"
    try:
        answer = exchange("GET", url, {}, None, LOOKUP_TIMEOUT)
        received = json.loads(answer.body).get("received")
    except (NotReachedError, NoAnswerError) as error:
        raise SentLogUnavailableError(f"the sent log did not answer ({error})") from None
    except (ValueError, AttributeError, RecursionError):
        raise SentLogUnavailableError("the sent log's answer cannot be read") from None
    if type(received) is int and received >= 0 and (answer.status, received > 0) in ((200, True), (404, False)):
        return received > 0
    raise SentLogUnavailableError(f"the sent log answered {answer.status}")


class _Session(smtplib.SMTP):
    """A conversation with one deadline for all of it, and its name not asked of the DNS."""

    def __init__(self, settings: MailSettings, deadline: Deadline) -> None:
        super().__init__(local_hostname=settings.mail_from.rpartition("@")[2])
        self._server = settings.server()
        self._deadline = deadline
        self._stream: Stream | None = None

    def begin(self) -> None:
        """Connect and hear the greeting; raises OSError or SMTPException."""
        code = self.connect(self._server.host, self._server.port)[0]
        if code != 220:
            raise smtplib.SMTPConnectError(code, "")
        if self._server.security == "smtp+starttls":
            self.starttls(context=cast("ssl.SSLContext", self))

    def _get_socket(self, host: str, port: int, _timeout: float) -> Any:
        self._stream = connect(host, port, self._deadline)
        return self.wrap_socket(self._stream) if self._server.security == "smtps" else self._stream

    def wrap_socket(self, stream: Stream, **_: Any) -> Stream:
        """Be the context that STARTTLS wraps the connection with."""
        self._stream = stream.secured(self._server.host)
        return self._stream

    def close(self) -> None:
        """End the conversation."""
        super().close()
        if self._stream is not None:
            self._stream.end()


def _connect(settings: MailSettings) -> _Session:
    session = _Session(settings, Deadline(DEADLINE, TIMEOUT))
    user, password = settings.server()[3:]
    try:
        session.begin()
        if user:
            session.login(user, password or "")
    except BaseException:
        session.close()
        raise
    return session


def _transfer(server: smtplib.SMTP, mail: Mail) -> None:
    """Run one mail transaction; only what follows the message's last byte can leave the outcome unknown."""
    try:
        server.ehlo_or_helo_if_needed()
        code = server.mail(mail.sender)[0]
        if code == 250:
            code = server.rcpt(mail.recipient)[0]
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise MailNotSentError(f"the mail server went away ({type(error).__name__})") from None
    _check(code, (250, 251))
    try:
        code = server.data(mail.content)[0]
    except smtplib.SMTPDataError as error:
        _check(error.smtp_code, ())
    except (OSError, smtplib.SMTPException, ValueError) as error:
        raise MailOutcomeUnknownError(f"the answer to a message was lost ({type(error).__name__})") from None
    if not 400 <= code < 600 and code != 250:  # half a line, or no reply at all: the message may be accepted
        raise MailOutcomeUnknownError("the answer to a message cannot be read")
    _check(code, (250,))


def _check(code: int, good: tuple[int, ...]) -> None:
    if code in good:
        return
    if 500 <= code < 600:
        raise MailRefusedError(f"the mail server refuses the message ({code})")
    raise MailNotSentError(f"the mail server did not take the message ({code})")
