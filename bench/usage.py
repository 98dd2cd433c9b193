"""What a host and its sessions use of the machine, taken apart: container, shim, host, engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from bench import processes
from bench.ours import OurHost
from host.engine import Role

_ENGINE = ("dockerd", "containerd")
_SHIM = "containerd-shim"


@dataclass(frozen=True)
class Memory:
    """Bytes. ``runtime`` to ``shim`` are means of the containers, those that wait for a session included."""

    sessions: int
    containers: int
    runtime: float
    """Proportional set size of all processes in the container."""
    container: float
    """What the kernel charges to the container: also its files in memory, and the kernel's own memory for it."""
    shim: float
    host: int
    """Resident set size of the host's process, and what processes it has started have of their own."""
    engine: int

    def as_json(self) -> dict[str, Any]:
        """Return it for the results file."""
        return {
            f"{name}_bytes" if name not in ("sessions", "containers") else name: value
            for name, value in asdict(self).items()
        }


class Meter:
    """Measures a host and those of its containers that are there when this is made, the catalog's left out."""

    def __init__(self, host: OurHost) -> None:
        self._host = host
        containers = set(host.containers(Role.SESSION))
        self._groups = [processes.Cgroup(host.engine.inspect_container(each)["State"]["Pid"]) for each in containers]
        engine = processes.named(*_ENGINE)
        shims = set(processes.named(_SHIM))
        self._engine = [pid for pid in engine if pid not in shims]
        self._shims = [pid for pid in shims if containers.intersection(processes.arguments(pid))]

    def memory(self, sessions: int) -> Memory:
        """Measure memory while there are so many sessions."""
        main, *children = self._host.pids
        return Memory(
            sessions=sessions,
            containers=len(self._groups),
            runtime=_mean([processes.total_pss_bytes(group.pids()) for group in self._groups]),
            container=_mean([group.memory_bytes() for group in self._groups]),
            shim=_mean([processes.pss_bytes(pid) for pid in self._shims]),
            host=processes.rss_bytes(main) + processes.total_pss_bytes(children),
            engine=processes.total_pss_bytes(self._engine),
        )

    def cpu_s(self) -> dict[str, float]:
        """Return the CPU time used so far: by the host, the sessions' containers, their shims, the engine."""
        return {
            "host": processes.total_cpu_s(self._host.pids),
            "sessions": sum(group.cpu_s() for group in self._groups),
            "shims": processes.total_cpu_s(self._shims),
            "engine": processes.total_cpu_s(self._engine),
        }


def _mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0
