"""A host that the tests of the dashboard share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import APT, Once
from tests.docker.conftest import probe_image
from tests.docker.harness import RunningHost, running_host
from tests.ui.browser import chromium

__all__ = ["probe_image"]

_TIMEOUT_S = 600
"""The first test of all may wait for Chromium and what it needs, 239 packages on a machine that has nothing."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session", autouse=True)
def _chromium(once: Once) -> None:
    """There is one before any test needs it; two workers don't install it at the same time."""
    once("chromium", chromium, lock=APT)


@pytest.fixture(scope="session")
def host(probe_image: str) -> Iterator[RunningHost]:
    """A host without a key that keeps what is said."""
    with running_host(probe_image, record="memory", memory="512MiB") as host:
        yield host
