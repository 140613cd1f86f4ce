"""Sends over SMTP, which is not idempotent, and asks a sent log what was sent."""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
import threading
import time
from urllib.parse import quote

import requests

from shared.errors import PermanentError, UnavailableError
from shared.providers.message import Mail
from shared.providers.settings import MailSettings

TIMEOUT = 15.0  # seconds for each answer of the mail server
DEADLINE = 30.0  # seconds for the whole conversation, however slowly it drips; below the step's timeout
LOOKUP_TIMEOUT = (3.05, 10)  # seconds to connect to the sent log, and for its answer


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
    began = time.monotonic()
    try:
        server = _connect(settings)
    except smtplib.SMTPAuthenticationError as error:
        raise MailNotSentError(f"the mail server refused the login ({error.smtp_code})") from None
    except (OSError, smtplib.SMTPException) as error:
        raise MailNotSentError(f"the mail server cannot be reached ({type(error).__name__})") from None
    timer = threading.Timer(max(began + DEADLINE - time.monotonic(), 0), _cut, (server,))
    timer.daemon = True
    timer.start()
    try:
        _transfer(server, mail)
        with contextlib.suppress(OSError, smtplib.SMTPException):
            server.quit()  # a courtesy: the message has been accepted, whatever happens to this
    finally:
        timer.cancel()
        server.close()


def was_sent(settings: MailSettings, message_id: str) -> bool:
    """Ask the sent log whether a message was accepted, by its Message-ID.

    Only the log's own answer counts as absence: a 404 whose JSON says that it was received zero times; any
    other 404 may be a wrong URL. Raises SentLogUnavailableError for everything else.
    """
    url = f"{settings.sent_log_url}/messages/{quote(message_id, safe='')}"
    try:
        answer = requests.get(url, timeout=LOOKUP_TIMEOUT, allow_redirects=False)
        received = answer.json().get("received")
    except (requests.RequestException, ValueError, AttributeError) as error:
        raise SentLogUnavailableError(f"the sent log did not answer ({type(error).__name__})") from None
    if answer.status_code == 200 and isinstance(received, int) and received > 0:
        return True
    if answer.status_code == 404 and received == 0:
        return False
    raise SentLogUnavailableError(f"the sent log answered {answer.status_code}")


def _cut(server: smtplib.SMTP) -> None:
    """End whatever the conversation waits for."""
    with contextlib.suppress(OSError, AttributeError):
        if server.sock is not None:
            server.sock.shutdown(socket.SHUT_RDWR)


def _connect(settings: MailSettings) -> smtplib.SMTP:
    security, host, port, user, password = settings.server()
    if security == "smtps":
        context = ssl.create_default_context()
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, port, timeout=TIMEOUT, context=context)
    else:
        server = smtplib.SMTP(host, port, timeout=TIMEOUT)
    try:
        if security == "smtp+starttls":
            server.starttls(context=ssl.create_default_context())
        if user:
            server.login(user, password or "")
    except BaseException:
        server.close()
        raise
    return server


def _transfer(server: smtplib.SMTP, mail: Mail) -> None:
    """Run one mail transaction; only what follows the message's last byte can leave the outcome unknown."""
    try:
        server.ehlo_or_helo_if_needed()
        code = server.mail(mail.sender)[0]
        if code == 250:
            code = server.rcpt(mail.recipient)[0]
    except (OSError, smtplib.SMTPException) as error:
        raise MailNotSentError(f"the mail server went away ({type(error).__name__})") from None
    _check(code, (250, 251))
    try:
        code = server.data(mail.content)[0]
    except smtplib.SMTPDataError as error:
        _check(error.smtp_code, ())
    except (OSError, smtplib.SMTPException) as error:
        raise MailOutcomeUnknownError(f"the answer to a message was lost ({type(error).__name__})") from None
    _check(code, (250,))


def _check(code: int, good: tuple[int, ...]) -> None:
    if code in good:
        return
    if 500 <= code < 600:
        raise MailRefusedError(f"the mail server refuses the message ({code})")
    raise MailNotSentError(f"the mail server did not take the message ({code})")
