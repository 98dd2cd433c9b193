"""A host that the tests of the dashboard share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.docker.conftest import probe_image
from tests.docker.harness import RunningHost, running_host

__all__ = ["probe_image"]


@pytest.fixture(scope="session")
def host(probe_image: str) -> Iterator[RunningHost]:
    """A host without a key that keeps what is said."""
    with running_host(probe_image, record="memory", memory="512MiB") as host:
        yield host
