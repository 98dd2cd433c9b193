"""Images of strangers, and hosts that serve them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from host.build import build_environment
from tests.conftest import Once
from tests.docker.conftest import host
from tests.strangers.images import HOSTILE, NODE, build_hostile

__all__ = ["host"]
"""A fixture that is used here too, on the ``shared_host`` of each module."""

HERE = Path(__file__).parent
EXAMPLES = HERE.parent.parent / "examples"

# Both clients honour proxy variables, for loopback addresses too; the newer one asks for its latest version.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
os.environ["OPENREWARD_DISABLE_UPDATE_CHECK"] = "1"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("docker")


@pytest.fixture(scope="session")
def node_image(once: Once) -> str:
    """The example in JavaScript."""
    once(NODE, lambda: build_environment(EXAMPLES / "node_env", NODE))
    return NODE


@pytest.fixture(scope="session")
def hostile_image(once: Once) -> str:
    """A server that misbehaves as it is told."""
    once(HOSTILE, build_hostile)
    return HOSTILE
