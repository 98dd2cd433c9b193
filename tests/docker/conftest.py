"""Images, a host that tests share, and the promise that is checked after each of them: no session's container is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path

import pytest

from host.build import build_environment
from tests.conftest import Once
from tests.docker.harness import Client, RunningHost, running_host

TESTS = Path(__file__).parent
EXAMPLES = TESTS.parent.parent / "examples"

# Both clients honour proxy variables, for loopback addresses too; the newer one asks for its latest version.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"

PROBE = "ors-host-test-probe:latest"
EXAMPLE_IMAGES = {
    "bash_env": "ors-host-test-bash:latest",
    "code_env": "ors-host-test-code:latest",
    "gsm8k_env": "ors-host-test-gsm8k:latest",
    "plot_env": "ors-host-test-plot:latest",
    "node_env": "ors-host-test-node:latest",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS in item.path.parents:
            item.add_marker("docker")


@pytest.fixture(scope="session")
def probe_image(once: Once) -> str:
    """An image of an environment that misbehaves on request (``probe_env``)."""
    once(PROBE, lambda: build_environment(TESTS / "probe_env", PROBE))
    return PROBE


@pytest.fixture(scope="session")
def example_images(once: Once) -> list[str]:
    """The images of all examples."""
    for folder, tag in EXAMPLE_IMAGES.items():
        once(tag, partial(build_environment, EXAMPLES / folder, tag))
    return list(EXAMPLE_IMAGES.values())


@pytest.fixture(scope="session")
def shared_host(probe_image: str) -> Iterator[RunningHost]:
    """One host for all tests that don't need one of their own."""
    with running_host(probe_image, max_sessions=32, memory="512MiB", idle_timeout=120) as host:
        yield host


@pytest.fixture
def host(shared_host: RunningHost) -> Iterator[RunningHost]:
    """The shared host; afterwards nothing is left of any session."""
    with shared_host.tidied():
        yield shared_host


@pytest.fixture
async def client(host: RunningHost) -> AsyncIterator[Client]:
    """The raw protocol, on the shared host."""
    async with host.client() as client:
        yield client
