"""One cluster for all tests; after each of them no session has left anything."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.cluster.stage import Stage, stage
from tests.docker.conftest import probe_image
from tests.docker.harness import Client, RunningHost

__all__ = ["probe_image"]

TESTS = Path(__file__).parent
_TIMEOUT_S = 180  # of the first test: it waits for the cluster


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS in item.path.parents:
            item.add_marker("docker")
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def shared_stage(probe_image: str) -> Iterator[Stage]:
    """Three nodes."""
    with stage(probe_image) as made:
        yield made


@pytest.fixture(scope="session")
def shared_front(shared_stage: Stage) -> Iterator[RunningHost]:
    """A front for all tests that don't end one."""
    with shared_stage.front(on_exit="remove") as front:
        shared_stage.wait_ready(3)
        yield front


@pytest.fixture
def cluster(shared_stage: Stage) -> Iterator[Stage]:
    """The shared cluster, which is empty again afterwards."""
    yield shared_stage
    shared_stage.assert_empty()


@pytest.fixture
async def client(cluster: Stage, shared_front: RunningHost) -> AsyncIterator[Client]:
    """The raw protocol, on the shared front."""
    async with shared_front.client() as client:
        yield client
