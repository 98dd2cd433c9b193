"""Images and hosts for the tests of profiles, network and disk; gVisor is put into the engine where it is missing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.build import build_environment
from host.isolation import Profile
from tests.conftest import Once
from tests.docker.conftest import EXAMPLE_IMAGES, example_images, probe_image
from tests.docker.harness import RunningHost, running_host

__all__ = ["example_images", "probe_image"]

TESTS = Path(__file__).parent
ROOT = TESTS.parent.parent
TOOLS = "ors-host-test-tools:latest"
MIB = 1024**2

_TIMEOUT_S = 400
"""The first test of all waits for every image to be built."""

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can look into containers' files or start engines")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS in item.path.parents:
            item.add_marker("docker")
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def tools_image(once: Once, probe_image: str) -> str:
    """The probe with gcc, make, git and curl."""
    once(TOOLS, lambda: build_environment(TESTS / "tools_env", TOOLS))
    return TOOLS


@pytest.fixture(scope="session")
def gvisor(once: Once) -> None:
    """See to it that the engine has gVisor's runtime; skip only where this user may not give it one."""
    once("gvisor", _give_gvisor)


def _give_gvisor() -> None:
    run = subprocess.run(
        ["bash", str(ROOT / "images" / "gvisor.sh")],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    if run.returncode != 0 and os.geteuid() != 0:
        pytest.skip(run.stderr.strip())
    assert run.returncode == 0, run.stderr


@pytest.fixture(scope="module", params=list(Profile))
def profile_host(
    request: pytest.FixtureRequest, example_images: list[str], tools_image: str
) -> Iterator[tuple[Profile, RunningHost]]:
    """A host with all examples and the tools, under each profile in turn; the one with a server of its own only as standard:
    strict lets it write nowhere but below /tmp, and gVisor lets nobody reach it."""
    profile: Profile = request.param
    if profile is Profile.GVISOR:
        request.getfixturevalue("gvisor")
    served = [image for image in example_images if profile is Profile.STANDARD or image != EXAMPLE_IMAGES["node_env"]]
    with running_host(
        tools_image, *served, isolation=profile, workspace_size="64MiB", tmp_size="32MiB", inodes=5000
    ) as host:
        yield profile, host
