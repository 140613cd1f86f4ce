"""What the local payment provider answers, as Stripe documents it."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

from local.faults import Fault

LONGEST_KEY = 255  # characters ("Idempotent requests")
AMOUNT = re.compile(r"[1-9][0-9]{0,7}")  # in the smallest unit, at most eight digits ("PaymentIntents")
REQUIRED = ("amount", "currency")
MESSAGES = {
    400: "The request is not valid.",
    401: "No valid API key was given.",
    402: "The card was declined.",
    409: "Another request with this idempotency key is in progress.",
    429: "Too many requests.",
    500: "Something went wrong here.",
    503: "The search is down.",
}


def refusal(fault: Fault) -> web.Response | None:
    """Return the answer of a fault that comes before anything is looked at."""
    if fault.kind == "rate_limited":
        answer = error(429, "invalid_request_error", "rate_limit")
        answer.headers["Retry-After"] = fault.retry_after or "1"
        return answer
    if fault.kind == "conflict":
        return error(409, "idempotency_error", "idempotency_key_in_use")
    if fault.kind == "unauthorised":
        return error(401, "invalid_request_error", "api_key_expired")
    return None


def invalid(key: str, given: dict[str, str]) -> web.Response | None:
    """Return the answer to a request that is refused before it executes."""
    if len(key) > LONGEST_KEY:
        return error(400, "invalid_request_error")
    for name in REQUIRED:
        if name not in given:
            return error(400, "invalid_request_error", "parameter_missing", name)
    if not AMOUNT.fullmatch(given["amount"]):
        return error(400, "invalid_request_error", "parameter_invalid_integer", "amount")
    return None


def intent(key: str, given: dict[str, str], number: int) -> dict[str, Any]:
    """Return a payment that succeeded, the `number`-th of all."""
    metadata = {name[9:-1]: value for name, value in given.items() if name.startswith("metadata[")}
    identifier = "pi_" + hashlib.sha256(f"{key}/{number}".encode()).hexdigest()[:24]
    return {
        "id": identifier, "object": "payment_intent", "status": "succeeded", "amount": int(given["amount"]),
        "currency": given["currency"], "metadata": metadata,
    }  # fmt: skip


def parameters(body: str) -> str:
    """Return what a key's later requests are compared with: the parameters, in whatever order they came."""
    return json.dumps(sorted(parse_qsl(body, keep_blank_values=True)))


def error(status: int, kind: str, code: str = "", param: str = "") -> web.Response:
    """Answer as Stripe's "Errors": a type always, a code and a parameter only where there is one."""
    told = {"type": kind, "code": code, "param": param, "message": MESSAGES[status]}
    return web.json_response({"error": {name: value for name, value in told.items() if value}}, status=status)
