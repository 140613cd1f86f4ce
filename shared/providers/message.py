"""E-mails as bytes: the same request gives the same message, down to its Message-ID and boundaries."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime

from shared.addresses import is_email
from shared.errors import PermanentError

# A constant, not the sender's domain: a setting that changes between two attempts must not change the id.
ID_DOMAIN = "id.echoproof.invalid"
_POLICY = SMTP.clone(cte_type="7bit")  # what is not ASCII is encoded, and survives any server on the way


class InvalidMessageError(PermanentError):
    """The message cannot be written as an e-mail."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A message ready to be sent; `message_id` is without angle brackets. Its repr holds no address."""

    message_id: str
    sender: str
    recipient: str
    content: bytes

    def __repr__(self) -> str:
        return f"Mail({self.message_id})"


@dataclass(frozen=True, slots=True)
class Letter:
    """What an e-mail says; `attachments` are contents by file name, .pdf or .csv."""

    recipient: str
    recipient_name: str
    subject: str
    text: str
    attachments: Mapping[str, bytes]


def message_id(key: str) -> str:
    """Return the Message-ID of the effect that has this provider key, without angle brackets."""
    return f"{key[:40]}@{ID_DOMAIN}"


def compose(letter: Letter, identifier: str, sender: str, date: datetime) -> Mail:
    """Write a letter as a message.

    `date` becomes its Date, so give the operation's time of acceptance. No input can add a header or
    recipient: values with line breaks are refused. Raises InvalidMessageError, which says which part without
    its value.
    """
    if not is_email(letter.recipient):
        raise InvalidMessageError("the recipient is not a plain e-mail address")
    message = EmailMessage(policy=_POLICY)
    try:
        message["Message-ID"] = f"<{identifier}>"
        message["Date"] = format_datetime(date)
        message["From"] = Address(addr_spec=sender)
        message["To"] = Address(letter.recipient_name, addr_spec=letter.recipient)
        message["Subject"] = letter.subject
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: out-of-office replies are not sent to it
        message.set_content(letter.text, cte="quoted-printable")
    except ValueError:
        raise InvalidMessageError("a header holds a line break") from None
    for name, content in letter.attachments.items():
        maintype, subtype = ("text", "csv") if name.endswith(".csv") else ("application", "pdf")
        params = {"charset": "utf-8"} if maintype == "text" else {}
        message.add_attachment(content, maintype=maintype, subtype=subtype, filename=name, params=params)
    message.set_boundary(f"={hashlib.sha256(identifier.encode()).hexdigest()[:32]}")
    return Mail(identifier, sender, letter.recipient, message.as_bytes())
