"""What tests of several folders share."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests import spreading
from tests.docker import on_ray

APT = "apt"
"""The lock of what asks apt-get for something."""


class Once(Protocol):
    """See ``once``. ``lock``: what has the same is not done at the same time."""

    def __call__(self, name: str, work: Callable[[], object], *, lock: str | None = None) -> None: ...


CACHE = Path.home() / ".cache" / "ors-host-tests" / "prometheus"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> spreading.Spreading:
    return spreading.Spreading(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    spreading.mark_and_sort(items, sort=hasattr(config, "workerinput"))
    on_ray.skip(items)


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """Do what has a name once in a run, whichever worker is the first to ask for it; others wait until it is done."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent

    def do(name: str, work: Callable[[], object], *, lock: str | None = None) -> None:
        with (folder / f"lock-{lock or name}").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            done = folder / f"done-{name}"
            if not done.exists():
                work()
                done.touch()

    return do


@pytest.fixture(scope="session")
def promtool(once: Once) -> str:
    """Prometheus's tool; in CI it is fetched from Debian's package (19 MB, nothing of it is installed)."""
    if (found := shutil.which("promtool")) is not None:
        return found
    tool = CACHE / "usr" / "bin" / "promtool"
    if not tool.exists() and os.environ.get("CI") and shutil.which("apt-get"):
        once("promtool", _fetch_promtool, lock=APT)
    if not tool.exists():
        pytest.skip("promtool is not installed (on Debian: apt-get install prometheus)")
    return str(tool)


def _fetch_promtool() -> None:
    CACHE.mkdir(parents=True, exist_ok=True)
    subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True, timeout=100)
    subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=CACHE, capture_output=True, timeout=100)
    for package in CACHE.glob("prometheus_*.deb"):
        subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True, timeout=60)
        package.unlink()
