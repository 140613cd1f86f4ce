"""One deployment a test process: copied, initialised, planned and applied once for all tests that only look."""

from __future__ import annotations

from typing import Any

import pytest

from tests.infra.kit import Deployment


@pytest.fixture(scope="session")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Deployment:
    return Deployment(tmp_path_factory.mktemp("deployment"))


@pytest.fixture(scope="session")
def plan(deployment: Deployment) -> dict[str, Any]:
    """The plan of production, before anything is applied."""
    return deployment.plan()


@pytest.fixture(scope="session")
def state(deployment: Deployment, plan: dict[str, Any]) -> dict[str, Any]:
    """What an apply of production made."""
    return deployment.apply()
