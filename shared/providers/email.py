"""E-mail over SMTP: not idempotent, so a deterministic Message-ID and a lookup in the log of sent messages."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta
from typing import Any

from shared import ijson
from shared.errors import UnavailableError
from shared.providers import Absent, Ambiguous, Confirmed, Found, Lookup, NotKnown, NotSent, Outcome, Rejected
from shared.providers.mailserver import (
    DEADLINE,
    MailNotSentError,
    MailOutcomeUnknownError,
    MailRefusedError,
    send,
    was_sent,
)
from shared.providers.message import InvalidMessageError, Letter, compose, message_id
from shared.providers.settings import MailSettings


class Email:
    """A mail server, with its sent log if there is one; without it only a person can tell what was sent.

    `visibility`: the log is written by the server before it accepts a message.
    """

    name = "email"
    idempotent = False
    horizon = timedelta(0)
    timeout = timedelta(seconds=DEADLINE)

    def __init__(self, settings: MailSettings) -> None:
        self._settings = settings
        self.visibility = settings.sent_log_delay if settings.sent_log_url else None

    @classmethod
    def from_environment(cls) -> Email:
        """Use the mail server that the environment names; raises ConfigError."""
        return cls(MailSettings.from_environment())

    def letter(self, letter: Letter, date: datetime) -> dict[str, Any]:
        """Return the request that sends a letter; `date` becomes its Date, so give the time of acceptance."""
        attachments = {name: base64.b64encode(content).decode() for name, content in letter.attachments.items()}
        return {
            "recipient": letter.recipient,
            "recipient_name": letter.recipient_name,
            "subject": letter.subject,
            "text": letter.text,
            "attachments": attachments,
            "date": date.isoformat(),
            "sender": self._settings.mail_from,
        }

    def encode(self, request: dict[str, Any]) -> bytes:
        """Write the letter as canonical JSON; the message is composed from it, the same bytes each time."""
        return ijson.canonical(request)

    def essence(self, request: bytes) -> bytes:
        """Return to whom it goes and what about."""
        letter = json.loads(request)
        return ijson.canonical([letter["recipient"], letter["subject"]])

    def send(self, key: str, request: bytes) -> Outcome:
        """Hand the message to the server once."""
        given = json.loads(request)
        attachments = {name: base64.b64decode(content) for name, content in given["attachments"].items()}
        letter = Letter(given["recipient"], given["recipient_name"], given["subject"], given["text"], attachments)
        try:
            mail = compose(letter, message_id(key), given["sender"], datetime.fromisoformat(given["date"]))
            send(self._settings, mail)
        except (InvalidMessageError, MailRefusedError) as error:
            return Rejected(str(error))
        except MailNotSentError as error:
            return NotSent(str(error))
        except MailOutcomeUnknownError as error:
            return Ambiguous(str(error))
        return Confirmed({"message_id": mail.message_id}, mail.message_id)

    def lookup(self, key: str, request: bytes) -> Lookup:  # noqa: ARG002 - the key finds it
        """Ask the sent log for the Message-ID."""
        identifier = message_id(key)
        if not self._settings.sent_log_url:
            return NotKnown("no sent log is configured to ask")
        try:
            sent = was_sent(self._settings, identifier)
        except UnavailableError as error:
            return NotKnown(str(error))
        return Found({"message_id": identifier}, identifier) if sent else Absent()
