"""What tests of several folders share."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CACHE = Path.home() / ".cache" / "ors-host-tests" / "prometheus"


@pytest.fixture(scope="session")
def promtool() -> str:
    """Prometheus's tool; in CI it is fetched from Debian's package (19 MB, nothing of it is installed)."""
    if (found := shutil.which("promtool")) is not None:
        return found
    tool = CACHE / "usr" / "bin" / "promtool"
    if not tool.exists() and os.environ.get("CI") and shutil.which("apt-get"):
        CACHE.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "update", "-qq"], check=False, capture_output=True, timeout=100)
        subprocess.run(["apt-get", "download", "-qq", "prometheus"], cwd=CACHE, capture_output=True, timeout=100)
        for package in CACHE.glob("prometheus_*.deb"):
            subprocess.run(["dpkg-deb", "-x", package, CACHE], check=True, timeout=60)
            package.unlink()
    if not tool.exists():
        pytest.skip("promtool is not installed (on Debian: apt-get install prometheus)")
    return str(tool)
