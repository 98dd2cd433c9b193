"""What processes and control groups use, read from the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
CGROUPS = Path("/sys/fs/cgroup")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def is_unified() -> bool:
    """Return True under cgroup v2."""
    return (CGROUPS / "cgroup.controllers").exists()


def pss_bytes(pid: int) -> int:
    """Return a process's proportional set size: its own memory, and its share of what it shares. 0 if it is gone."""
    try:
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass
    return 0


def rss_bytes(pid: int) -> int:
    """Return a process's resident set size; 0 if it is gone."""
    try:
        return int(_stat(pid)[21]) * os.sysconf("SC_PAGE_SIZE")
    except (FileNotFoundError, ProcessLookupError):
        return 0


def cpu_s(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds (to 10 ms); 0 if it is gone."""
    try:
        fields = _stat(pid)
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    parents: dict[int, list[int]] = {}
    for each in all_pids():
        try:
            parents.setdefault(int(_stat(each)[1]), []).append(each)
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = [pid]
    for each in found:
        found += parents.get(each, [])
    return found


def named(*prefixes: str) -> list[int]:
    """Return the processes whose program's name begins with one of these."""
    return [pid for pid in all_pids() if Path((arguments(pid) or [""])[0]).name.startswith(prefixes)]


def all_pids() -> list[int]:
    """Return every process that can be seen."""
    return [int(entry) for entry in os.listdir(PROC) if entry.isdigit()]


def arguments(pid: int) -> list[str]:
    """Return the words that a process was started with; none if it is gone."""
    try:
        return os.fsdecode((PROC / str(pid) / "cmdline").read_bytes()).split("\0")
    except (FileNotFoundError, ProcessLookupError):
        return []


class Cgroup:
    """The control group of a process, as it was when this was made; either version."""

    def __init__(self, pid: int) -> None:
        self._paths: dict[str, Path] = {}
        for line in (PROC / str(pid) / "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for name in controllers.split(",") if controllers else ["unified"]:
                self._paths[name] = CGROUPS / (name if controllers else "") / path.lstrip("/")
        self._unified = is_unified()

    def memory_bytes(self) -> int:
        """Return what is charged to the group: its processes, files in memory, and the kernel's memory for them."""
        if self._unified:
            return int((self._paths["unified"] / "memory.current").read_text())
        return int((self._paths["memory"] / "memory.usage_in_bytes").read_text())

    def cpu_s(self) -> float:
        """Return the CPU time that the group has used, in seconds."""
        if self._unified:
            words = (self._paths["unified"] / "cpu.stat").read_text().split()
            return int(words[words.index("usage_usec") + 1]) / 1e6
        return int((self._paths["cpuacct"] / "cpuacct.usage").read_text()) / 1e9

    def pids(self) -> list[int]:
        """Return the processes in the group."""
        folder = self._paths["unified" if self._unified else "memory"]
        return [int(line) for line in (folder / "cgroup.procs").read_text().split()]


def total_pss_bytes(pids: Iterable[int]) -> int:
    """Return the sum of the processes' proportional set sizes."""
    return sum(map(pss_bytes, pids))


def total_cpu_s(pids: Iterable[int]) -> float:
    """Return the sum of the CPU times that the processes have used."""
    return sum(map(cpu_s, pids))


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the third on: those after the name, which may hold anything."""
    return (PROC / str(pid) / "stat").read_text().rpartition(") ")[2].split()
