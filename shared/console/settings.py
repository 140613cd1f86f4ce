"""Who may use the console, and how it knows them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Self

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from shared.config import private_url
from shared.settings import EnvironmentSettings, email, on_cloud_run

IAP_KEYS = "https://www.gstatic.com/iap/verify/public_key"
SHORTEST_SECRET = 32  # characters


def _emails(text: object) -> object:
    if not isinstance(text, str):
        return text
    return frozenset(email(part.strip()) for part in text.split(",") if part.strip())


def _local_user(name: str, info: ValidationInfo) -> str:
    if on_cloud_run(info):
        raise ValueError("is set, which is for one's own machine only")
    return name


_Emails = Annotated[frozenset[str], BeforeValidator(_emails)]


class ConsoleSettings(EnvironmentSettings):
    """Identity-Aware Proxy's audience and the two roles; or, on one's own machine, a fixed operator.

    Viewers look; operators look and decide. `console_secret` signs the forms' tokens and is the same in every
    instance; only the fixed operator's one process may do without.
    """

    console_audience: str | None = Field(
        None, pattern=r"^/projects/[0-9]+/\S{1,400}$",
        description="the audience of IAP's assertion, like /projects/1234/locations/europe-west2/services/console",
    )  # fmt: skip
    console_keys_url: Annotated[str, AfterValidator(private_url)] = Field(
        IAP_KEYS, description="where IAP's public keys are; Google's by default"
    )
    console_viewers: _Emails = Field(frozenset(), description="e-mails with commas of those who look")
    console_operators: _Emails = Field(frozenset(), description="e-mails with commas of those who decide, too")
    console_secret: SecretStr | None = Field(
        None, min_length=SHORTEST_SECRET, description=f"at least {SHORTEST_SECRET} random characters, kept secret"
    )
    console_local_user: Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,100}$"), AfterValidator(_local_user)] | None = (
        Field(None, description="the name of the one operator of one's own machine")
    )

    @classmethod
    def problems_between(cls, given: Collection[str]) -> list[str]:
        """Tell unless there is one way to know people, whole."""
        if "console_local_user" in given:
            return ["CONSOLE_AUDIENCE: is set beside CONSOLE_LOCAL_USER"] if "console_audience" in given else []
        missing = [name for name in ("console_audience", "console_secret") if name not in given]
        return [f"{name.upper()}: is not set; set it to {cls.model_fields[name].description}" for name in missing]

    @model_validator(mode="after")
    def _somebody(self) -> Self:
        if self.console_audience and not self.console_operators | self.console_viewers:
            raise ValueError("CONSOLE_OPERATORS: lets nobody in; name operators or viewers")
        return self
