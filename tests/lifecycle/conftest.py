"""The image of the probe, and an engine that can be made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docker.conftest import probe_image
from tests.lifecycle.faulty_engine import FaultyEngine, faulty_engine

__all__ = ["probe_image"]

TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if TESTS in item.path.parents:
            item.add_marker("docker")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FaultyEngine]:
    """The machine's engine, behind a proxy that can be made to fail."""
    with faulty_engine(tmp_path) as engine:
        yield engine
