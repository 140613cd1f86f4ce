"""Who may call: internal functions refuse strangers and are hidden outside, intake wants a caller's token."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import requests

from local.smoke.target import TIMEOUT, Target
from local.smoke.verdict import Verdict, guarded, judged, not_checked

REFUSED = frozenset({401, 403, 404})  # by the function, by IAM, by ingress
HIDDEN = 404  # what Cloud Run's ingress answers; 403 may also be IAM, behind an ingress that is open


def push_authentication(target: Target) -> Iterator[Verdict]:
    """Call every internal function without a token and with a stranger's."""
    for name, url in target.internal.items():
        yield guarded(f"push authentication of {name}", lambda name=name, url=url: _refuses(target, name, url))  # type: ignore[misc]


def _refuses(target: Target, name: str, url: str) -> Verdict:
    stranger = f"Bearer {target.tokens.token(url)}"
    answers = {
        "no token": _post(url),
        "a stranger's token": _post(url, stranger),
        "garbage": _post(url, "Bearer a.b.c"),
    }
    wrong = [f"{what} is answered {status}" for what, status in answers.items() if status not in REFUSED]
    return judged(f"push authentication of {name}", wrong, _told(answers))


def ingress(target: Target) -> Verdict:
    """From outside, internal functions are not to be found at all."""
    check = "ingress of internal functions"
    if target.local:
        return not_checked(check, "a stack on one machine has no inside and outside")

    def look() -> Verdict:
        answers = {name: _post(url) for name, url in target.internal.items()}
        wrong = [f"{name} answers {status}" for name, status in answers.items() if status not in {HIDDEN, 403}]
        unsure = sorted(name for name, status in answers.items() if status == 403)
        if unsure and not wrong:
            return not_checked(
                check, f"403 may be ingress or IAM: see the ingress of {', '.join(unsure)} in the console"
            )
        return judged(check, wrong, f"{len(answers)} functions answer {HIDDEN} from here")

    return guarded(check, look)


def tokens(target: Target) -> Verdict:
    """Intake refuses calls without a token, with garbage, and with a token that is meant for another."""
    check = "tokens at intake"
    if target.intake_token is None:
        return not_checked(check, "the caller `anonymous` needs no token on one's own machine")

    def look() -> Verdict:
        other = f"Bearer {target.tokens.token('https://elsewhere.example')}"
        answers = {
            "no token": _get(target),
            "garbage": _get(target, "Bearer a.b.c"),
            "another audience": _get(target, other),
        }
        wrong = [f"{what} is answered {status}" for what, status in answers.items() if status not in REFUSED - {404}]
        own = _get(target, f"Bearer {target.intake_token}")
        wrong += [f"the caller's own token is answered {own}"] if own in {401, 403} else []
        return judged(check, wrong, f"{_told(answers)}; the caller's own {own}")

    return guarded(check, look)


def reachable(target: Target) -> Verdict:
    """Intake answers at all."""

    def look() -> Verdict:
        status = _get(target, f"Bearer {target.intake_token}" if target.intake_token else None)
        return judged("intake", [f"it answers {status}"] if status >= 500 else [], f"it answers {status}")

    return guarded("intake", look)


def _post(url: str, authorization: str | None = None) -> int:
    headers = {"Authorization": authorization} if authorization else {}
    return requests.post(url, data=b"{}", headers=headers, timeout=TIMEOUT, allow_redirects=False).status_code


def _get(target: Target, authorization: str | None = None) -> int:
    headers = {"Authorization": authorization} if authorization else {}
    # No tenant has this name: the answer says who may come in, and reads nothing.
    url = f"{target.intake}/v1/tenants/smoke-nobody/operations"
    return requests.get(url, headers=headers, timeout=TIMEOUT, allow_redirects=False).status_code


def _told(answers: Mapping[str, int]) -> str:
    return ", ".join(f"{what} {status}" for what, status in answers.items())
