"""What the functions must know of their surroundings, read once at start.

Document storage and mail have their own groups in `shared.providers.settings`; `load` reads them together.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationInfo, model_validator

from shared.durations import duration
from shared.errors import ConfigError, InvalidRequestError
from shared.pipeline import Pipeline
from shared.request import check_tenant
from shared.settings import EnvironmentSettings, email, from_json, load, on_cloud_run
from shared.shutdown import GRACE
from shared.token_certificates import GOOGLE_CERTIFICATES

if TYPE_CHECKING:
    from shared.tokens import TokenVerifier

__all__ = [
    "ANONYMOUS",
    "EVERY_TENANT",
    "DatabaseSettings",
    "DeliverySettings",
    "IntakeSettings",
    "ProjectSettings",
    "PushSettings",
    "ShutdownSettings",
    "check_timeouts",
    "load",
]

ANONYMOUS = "anonymous"  # the caller without a token: on one's own machine only
EVERY_TENANT = "*"

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_DATABASE_SCHEMES = frozenset({"postgresql", "postgres"})


def _database_url(secret: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(secret.get_secret_value())
        usable = parts.scheme in _DATABASE_SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        raise ValueError("is not a URL of a PostgreSQL database")
    return secret


def _emails(text: object) -> object:
    return frozenset(email(part.strip()) for part in text.split(",")) if isinstance(text, str) else text


def private_url(text: str) -> str:
    """Return a URL as it is when it is https, or of a server on this machine; raises ValueError."""
    parts = urlsplit(text)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOOPBACK):
        raise ValueError("must be https, unless the server is on this machine")
    return text


def _private_urls(urls: Mapping[str, str]) -> Mapping[str, str]:
    for url in urls.values():
        private_url(url)
    return urls


def _token_mode(mode: str, info: ValidationInfo) -> str:
    if mode == "platform" and not on_cloud_run(info):
        raise ValueError("is platform, but nothing verifies signatures outside Cloud Run")
    return mode


def _callers(callers: Mapping[str, frozenset[str]], info: ValidationInfo) -> Mapping[str, frozenset[str]]:
    if not callers:
        raise ValueError("lets nobody in")
    if ANONYMOUS in callers and on_cloud_run(info):
        raise ValueError(f"has the caller {ANONYMOUS}, which is for one's own machine only")
    for caller in callers.keys() - {ANONYMOUS}:
        email(caller)
    for tenant in frozenset().union(*callers.values()) - {EVERY_TENANT}:
        try:
            check_tenant(tenant)
        except InvalidRequestError as error:
            raise ValueError(error.detail) from None
    return callers


_Duration = Annotated[timedelta, BeforeValidator(duration)]
_Word = Annotated[str, Field(pattern=r"^\S{1,500}$")]


class DatabaseSettings(EnvironmentSettings):
    """Which PostgreSQL: a URL, or a Cloud SQL instance that is reached with IAM authentication.

    `pool_size` connections an instance (INFRA, Connection budget). The timeouts end a statement, a wait for a
    lock and an idle transaction, each well before the shortest lease (`check_timeouts`).
    """

    database_url: Annotated[SecretStr, AfterValidator(_database_url)] | None = Field(
        None, description="postgresql://user:password@host:port/database"
    )
    instance_connection_name: str | None = Field(
        None, pattern=r"^[a-z0-9.:-]+:[a-z0-9-]+:[a-z0-9-]+$", description="project:region:instance"
    )
    database_name: _Word | None = Field(None, description="the database's name in that instance")
    database_user: _Word | None = Field(None, description="the service account's e-mail without .gserviceaccount.com")
    pool_size: int = Field(2, ge=1, le=20, description="connections an instance, 2 by default")
    statement_timeout: _Duration = Field(timedelta(seconds=15), description="a duration like 15s")
    lock_timeout: _Duration = Field(timedelta(seconds=10), description="a duration like 10s")
    idle_in_transaction_timeout: _Duration = Field(timedelta(seconds=15), description="a duration like 15s")

    @classmethod
    def problems_between(cls, given: Collection[str]) -> list[str]:
        """Tell unless exactly one way to a database is given, whole."""
        cloud_sql = ("instance_connection_name", "database_name", "database_user")
        missing = [name.upper() for name in cloud_sql if name not in given]
        ways = ", ".join(cloud_sql).upper()
        if "database_url" in given:
            return [] if len(missing) == len(cloud_sql) else [f"DATABASE_URL: is set beside some of {ways}"]
        if len(missing) == len(cloud_sql):
            return [f"DATABASE_URL: is not set; set it, or for Cloud SQL {ways}"]
        return [f"{', '.join(missing)}: is not set; Cloud SQL needs all of {ways}"] if missing else []


class ProjectSettings(EnvironmentSettings):
    """Which Google Cloud project, and which pipeline file (the one beside `shared/` by default)."""

    google_cloud_project: str = Field(
        pattern=r"^[a-z][a-z0-9.:-]{2,60}[a-z0-9]$", description="the project's id, or any like it for a local stack"
    )
    pipeline_file: Path = Field(
        Path(__file__).resolve().parent.parent / "pipeline.yaml", description="the path of a pipeline file"
    )

    def pipeline(self) -> Pipeline:
        """Read the pipeline file; raises PipelineError, a ConfigError."""
        return Pipeline.load(self.pipeline_file)


class ShutdownSettings(EnvironmentSettings):
    """How long running handlers may go on after SIGTERM; gunicorn kills after thirty seconds, Cloud Run after ten."""

    shutdown_grace: Annotated[_Duration, Field(lt=timedelta(seconds=30))] = Field(
        GRACE, description="a duration like 8s, shorter than 30s"
    )


class DeliverySettings(EnvironmentSettings):
    """How dispatches are handed over: Cloud Tasks' region and account, where the step functions listen, and by whom.

    With `publish_at_once` false no writer hands anything over after its commit: the relay alone does.
    """

    tasks_location: str = Field(pattern=r"^[a-z]+-[a-z]+[0-9]+$", description="the queues' region, like europe-west2")
    tasks_account: Annotated[str, AfterValidator(email)] = Field(
        description="the e-mail of the service account whose token a task carries"
    )
    step_urls: Annotated[Mapping[str, str], BeforeValidator(from_json), AfterValidator(_private_urls)] = Field(
        description='JSON like {"invoice_record": "https://..."}, every step function of the pipeline'
    )
    publish_at_once: bool = Field(default=True, description="true, or false for the relay alone")

    def check(self, pipeline: Pipeline) -> None:
        """Raise ConfigError unless every step function has its URL."""
        missing = [name for name in pipeline.functions if name not in self.step_urls]
        if missing:
            raise ConfigError([f"STEP_URLS: has no URL of {', '.join(missing)}"])


class _TokenSettings(EnvironmentSettings):
    token_certs_url: Annotated[str, AfterValidator(private_url)] = Field(
        GOOGLE_CERTIFICATES, description="where the certificates of tokens are; Google's by default"
    )
    token_mode: Annotated[Literal["signature", "platform"], AfterValidator(_token_mode)] = Field(
        "signature", description="signature, or platform behind Cloud Run's own check"
    )


class PushSettings(_TokenSettings):
    """Whose pushes, tasks and schedules a function accepts: `push_account` may be several, with commas."""

    push_audience: _Word = Field(description="the audience of the tokens, usually the function's URL")
    push_account: Annotated[frozenset[str], BeforeValidator(_emails)] = Field(
        description="the e-mail of the service account that calls this function, or several with commas"
    )

    def verifier(self) -> TokenVerifier:
        """Make the verifier of these tokens."""
        from shared.tokens import TokenVerifier

        return TokenVerifier(self.push_audience, self.push_account, self.token_certs_url, self.token_mode)


class IntakeSettings(_TokenSettings):
    """Who may ask for operations, and for which tenants.

    `callers` maps a verified e-mail to its tenants, of which `*` is every one. The caller `anonymous` needs no
    token and is refused on Cloud Run.
    """

    callers: Annotated[Mapping[str, frozenset[str]], BeforeValidator(from_json), AfterValidator(_callers)] = Field(
        description='JSON like {"app@project.iam.gserviceaccount.com": ["shop"]}'
    )
    intake_audience: _Word | None = Field(None, description="the audience of the callers' tokens")

    @model_validator(mode="after")
    def _audience_for_tokens(self) -> Self:
        if self.intake_audience is None and self.callers.keys() != {ANONYMOUS}:
            raise ValueError("INTAKE_AUDIENCE: is not set; set it to the audience of the callers' tokens")
        return self

    def allows(self, caller: str, tenant: str) -> bool:
        """Whether a caller (a verified e-mail, or `anonymous`) may use a tenant."""
        tenants = self.callers.get(caller, frozenset())
        return tenant in tenants or EVERY_TENANT in tenants

    def verifier(self) -> TokenVerifier | None:
        """Make the verifier of the callers' tokens; None when only `anonymous` may call.

        It accepts the accounts in `callers` alone.
        """
        from shared.tokens import TokenVerifier

        if self.intake_audience is None:
            return None
        accounts = frozenset(self.callers.keys() - {ANONYMOUS})
        return TokenVerifier(self.intake_audience, accounts, self.token_certs_url, self.token_mode)


def check_timeouts(database: DatabaseSettings, pipeline: Pipeline) -> None:
    """Raise ConfigError unless every database timeout ends before the shortest lease (DESIGN §5)."""
    shortest = min(step.lease for step in pipeline.steps)
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_timeout")
    late = [name.upper() for name in names if getattr(database, name) >= shortest]
    if late:
        lease = f"{shortest.total_seconds():g}s"
        raise ConfigError([f"{name}: must be shorter than the shortest lease, {lease}" for name in late])
