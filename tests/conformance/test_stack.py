"""The whole stack on servers of one's own, which it neither starts nor stops: Google's emulator, and ours apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local.client import Client
from local.postgres import Postgres, free_port
from local.stack import ROOT, Stack
from tests.conformance.cases import Backend


@pytest.mark.timeout(180)
def test_an_invoice_is_made_over_servers_of_ones_own(
    server: Backend, postgres: Postgres, database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", server.address)
    monkeypatch.setenv("DATABASE_URL", database_url)
    body = json.loads((ROOT / "examples" / "invoice.generate.json").read_text())
    with Stack(tmp_path, port=free_port(), tick=1) as stack:
        assert set(stack.parts) & {"postgres", "pubsub"} == set()
        client = Client(stack.addresses.intake, "shop")
        submitted = client.submit(body, "order-1")
        assert client.wait(submitted.operation_id, 60)["state"] == "succeeded"
    assert postgres.pid is not None
