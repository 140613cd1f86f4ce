"""Who may do what on what: `python -m tests.infra.iam > docs/iam.md` writes the table that a test compares."""

from __future__ import annotations

import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tests.infra.kit import Deployment, missing, resources

ON = (  # where a binding's resource stands, by the type's name
    ("google_artifact_registry_repository", "repository"),
    ("google_cloud_run_v2_service", "name"),
    ("google_cloud_tasks_queue", "name"),
    ("google_iap_web_cloud_run_service", "cloud_run_service_name"),
    ("google_project", "project"),
    ("google_pubsub_subscription", "subscription"),
    ("google_pubsub_topic", "topic"),
    ("google_secret_manager_secret", "secret_id"),
    ("google_service_account", "service_account_id"),
    ("google_storage_bucket", "bucket"),
)
KINDS = {
    "google_artifact_registry_repository": "repository",
    "google_cloud_run_v2_service": "service",
    "google_cloud_tasks_queue": "queue",
    "google_iap_web_cloud_run_service": "behind IAP",
    "google_project": "",
    "google_pubsub_subscription": "subscription",
    "google_pubsub_topic": "topic",
    "google_secret_manager_secret": "secret",
    "google_service_account": "account",
    "google_storage_bucket": "bucket",
}
HEAD = """# Who may do what

Every IAM binding of `infra/` with the values of `envs/production.tfvars`, no more, no less: `tests/infra` compares this
table with what Terraform makes. It is written by `python -m tests.infra.iam > docs/iam.md`; read what changes before
committing it. PROJECT and NUMBER stand for the project's id and number. What each function may do in the database is in
[database-roles.md](database-roles.md).

| who | role | on |
|---|---|---|
"""

Binding = tuple[str, str, str]


def bindings(state: dict[str, Any]) -> set[Binding]:
    """Every binding of a state: member, role, and what it is on."""
    return {_binding(resource) for resource in resources(state) if "_iam_" in resource["type"]}


def _binding(resource: dict[str, Any]) -> Binding:
    values = resource["values"]
    kind, attribute = next(pair for pair in ON if resource["type"] == f"{pair[0]}_iam_member")
    name = str(values[attribute]).rpartition("/")[2].partition("@")[0]
    on = "the project" if kind == "google_project" else f"{KINDS[kind]} `{name}`"
    who = _agent(resource["address"]) if "@gcp-sa-" in values["member"] else _plain(values["member"])
    return who, f"`{values['role'].removeprefix('roles/')}`", _plain(on)


def _plain(text: str) -> str:
    """Take the project's own name and number, and what they add, out of a member or a name."""
    text = text.replace("@my-project.iam.gserviceaccount.com", "").replace("my-project", "PROJECT")
    return text.removeprefix("serviceAccount:")


def _agent(address: str) -> str:
    """Tell a service agent by the binding: the stand-ins give all of them one name."""
    return f"service agent of {'Identity-Aware Proxy' if address.endswith('.iap') else 'Pub/Sub'}"


def table(state: dict[str, Any]) -> str:
    """Write the page: a line for each member and role, with all that it has the role on."""
    rows: dict[tuple[str, str], list[str]] = defaultdict(list)
    for who, role, on in sorted(bindings(state)):
        rows[who, role].append(on)
    return HEAD + "".join(f"| {who} | {role} | {', '.join(on)} |\n" for (who, role), on in rows.items())


def main() -> int:
    """Apply with the stand-ins and print the page."""
    if lack := missing():
        sys.stderr.write(f"{lack}\n")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(table(Deployment(Path(folder)).apply()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
