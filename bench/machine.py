"""The machine a benchmark runs on, and what is on it."""

from __future__ import annotations

import os
import platform
import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.processes import is_unified
from host import docker_client

_PACKAGES = ("ors-host", "ors-sdk", "aiohttp", "uvicorn", "uvloop", "httptools", "pydantic", "docker")
BUSY_LOAD = 0.3
"""Load per core before the start; over this, somebody else is using the machine."""


@dataclass(frozen=True)
class Machine:
    """What a reader must know to compare figures; nothing that names the machine."""

    date: str
    cpu: str
    cores: int
    memory_bytes: int
    kernel: str
    system: str
    docker: str
    storage_driver: str
    cgroup_version: int
    python: str
    packages: dict[str, str]
    load_before: tuple[float, float, float]

    @classmethod
    def look(cls, engine: docker_client.APIClient) -> Machine:
        """Look at this machine now."""
        info = engine.info()
        return cls(
            date=datetime.now(UTC).strftime("%Y-%m-%d"),
            cpu=_cpu(),
            cores=os.cpu_count() or 1,
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            kernel=platform.release().split("-")[0],
            system=str(info["OperatingSystem"]),
            docker=str(info["ServerVersion"]),
            storage_driver=str(info["Driver"]),
            cgroup_version=2 if is_unified() else 1,
            python=platform.python_version(),
            packages={name: version for name in _PACKAGES if (version := _version(name))},
            load_before=os.getloadavg(),
        )

    @property
    def is_busy(self) -> bool:
        """True if something else was running."""
        return self.load_before[0] > BUSY_LOAD * self.cores

    def words(self) -> str:
        """Return it as a sentence's part."""
        memory = f"{self.memory_bytes / 2**30:.0f} GiB"
        return (
            f"{self.cores} cores of an {self.cpu}, {memory}, {self.system}, Linux {self.kernel}, "
            f"Docker {self.docker.partition('+')[0]}, cgroup v{self.cgroup_version}, Python {self.python}"
        )

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return asdict(self)


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.machine()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
