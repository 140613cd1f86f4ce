"""What a smoke test looks at: a deployment in the cloud, or the stack on this machine."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from local.signing import Signer
from local.stack import ADDRESSES_FILE
from shared.errors import ConfigError, UnavailableError
from shared.pipeline import Pipeline

INTERNAL = ("relay", "reconcile", "dead_letter")  # and every step function
TIMEOUT = 30.0  # seconds for one call; an instance may have to start
_URL = re.compile(r"https://intake-(?P<number>[0-9]+)\.(?P<region>[a-z0-9-]+)\.run\.app/?")


class Tokens(Protocol):
    """Makes ID tokens of the caller; raises UnavailableError when there is none to be had."""

    def token(self, audience: str) -> str:
        """Return a token for an audience."""


@dataclass(frozen=True)
class Target:
    """Where everything is. `intake_token` None: intake lets this caller in without one, as only a local stack does."""

    intake: str
    internal: Mapping[str, str]
    tokens: Tokens
    intake_token: str | None = None
    project: str = ""
    region: str = ""
    local: bool = False
    data: Path = field(default=Path(".echoproof"))


class LocalTokens:
    """Signs with the key of the local stack, as an account that no function knows."""

    def __init__(self, data: Path) -> None:
        self._signer = Signer(data / "cloud")

    def token(self, audience: str) -> str:
        """Return a token for an audience."""
        return self._signer.id_token("stranger@elsewhere.iam.gserviceaccount.com", audience)


class GoogleTokens:
    """Application Default Credentials: a service account's own ID tokens, or those of one that may be impersonated."""

    def __init__(self, impersonated: str | None = None) -> None:
        self._impersonated = impersonated

    def token(self, audience: str) -> str:
        """Return a token for an audience; raises UnavailableError."""
        from google.auth.exceptions import GoogleAuthError
        from google.auth.transport.requests import Request

        try:
            credentials = self._credentials(audience)
            credentials.refresh(Request())
        except GoogleAuthError as error:
            raise UnavailableError(
                f"no ID token from Application Default Credentials ({type(error).__name__}): set"
                " GOOGLE_APPLICATION_CREDENTIALS, or --impersonate an account that intake's callers name"
            ) from None
        return str(credentials.token)

    def _credentials(self, audience: str) -> Any:
        import google.auth
        from google.auth import impersonated_credentials
        from google.oauth2 import id_token

        if self._impersonated is None:
            return id_token.fetch_id_token_credentials(audience)  # type: ignore[no-untyped-call]
        source, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
        acting = impersonated_credentials.Credentials(source, self._impersonated, ["openid"])  # type: ignore[no-untyped-call]
        return impersonated_credentials.IDTokenCredentials(acting, audience, include_email=True)  # type: ignore[no-untyped-call]


def in_the_cloud(project: str, intake: str, region: str | None, pipeline: Pipeline, tokens: Tokens) -> Target:
    """Work out every function's address from intake's; raises ConfigError for one that tells nothing."""
    match = _URL.fullmatch(intake)
    if match is None or (region is not None and match["region"] != region):
        raise ConfigError(
            ["--intake-url: is the output intake_url of Terraform, like https://intake-NUMBER.REGION.run.app"]
        )
    suffix = f"-{match['number']}.{match['region']}.run.app"
    names = (*INTERNAL, *pipeline.functions)
    internal = {name: f"https://{name.replace('_', '-')}{suffix}" for name in names}
    intake = intake.rstrip("/")
    return Target(intake, internal, tokens, tokens.token(intake), project, match["region"])


def on_this_machine(data: Path) -> Target:
    """Find the stack that runs in a folder; raises ConfigError when none does."""
    try:
        urls: dict[str, str] = json.loads((data / ADDRESSES_FILE).read_text())
    except (OSError, ValueError):
        raise ConfigError([f"--local: no stack runs in {data}; `echoproof up` starts one"]) from None
    internal = {name: url for name, url in urls.items() if name not in {"intake", "console"}}
    return Target(urls["intake"], internal, LocalTokens(data), local=True, data=data)
