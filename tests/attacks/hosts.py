"""Hosts that serve the hostile runtime, and how large they are."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.attacks.targets import processes_on_the_machine
from tests.docker.harness import RunningHost, running_host

GROWTH_MB = 20
"""A host may be so much larger after the attacks than before."""


def serving_hostile(image: str, profile: str, **times: float) -> AbstractContextManager[RunningHost]:
    """Start a host for the hostile image."""
    limits: dict[str, Any] = {
        **times,
        "isolation": profile,
        "max_sessions": 24,
        "max_calls": 128,
        "max_kept_results": "16MiB",
        "memory": "256MiB",
        "pids": 64,
        "cpus": 0.5,
        "cancel_grace": 0.5,
        "teardown_timeout": 1,
        "start_concurrency": 2,
    }
    return running_host(image, **limits)


def memory_mb(host: RunningHost) -> int:
    """Return the host process's resident memory."""
    return int(Path(f"/proc/{host.process.pid}/statm").read_text().split()[1]) * 4096 // 2**20


def readers(host: RunningHost) -> list[int]:
    """Return the processes that read what is heavy for this host."""
    return [pid for pid in processes_on_the_machine("spawn_main") if _parent(pid) == host.process.pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
