"""What the kernel counts for one container: read from its cgroup's files, or from what the engine's API says of them.

Docker's cgroups are found by the container's id: under ``docker/`` or ``system.slice/`` (its two cgroup drivers), in one tree
(version 2) or in one for each controller (version 1, hybrid). Where an engine was told to put them elsewhere, that is learned
from a process of one container.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ROOT, _PROC = Path("/sys/fs/cgroup"), Path("/proc")
_DRIVERS = ("docker/{id}", "system.slice/docker-{id}.scope")
"""Where containers are with the drivers cgroupfs and systemd."""

_MOST_BYTES = 16 * 1024
"""More than any of these files holds."""

_INACTIVE = re.compile(rb"^(?:total_)?inactive_file (\d+)$", re.MULTILINE)
_CPU_USEC = re.compile(rb"^usage_usec (\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """One look at a container. ``at``: seconds of the monotonic clock; ``cpu_s``: processor time used in its life."""

    at: float
    cpu_s: float
    memory_bytes: int
    """Without what the kernel could drop at once: files that were not read for a while."""


@dataclass(frozen=True)
class _Layout:
    """Where a container's numbers are; ``{id}`` stands for its id."""

    version: int
    memory: str
    cpu: str


class Cgroups:
    """The cgroups of this machine's containers."""

    def __init__(self, root: Path = _ROOT, proc: Path = _PROC) -> None:
        self._root = root
        self._proc = proc
        self._version = 2 if (root / "cgroup.controllers").exists() else 1
        self._known = [self._layout(place, place) for place in _DRIVERS]

    def read(self, container_id: str) -> Sample | None:
        """Return what a container uses; None if it has no cgroup here, or none any more."""
        for place, layout in enumerate(self._known):
            try:
                sample = _read(layout, container_id)
            except (OSError, AttributeError, ValueError):  # it is not there, or ends just now
                continue
            if place:  # the others will be there as well
                self._known.insert(0, self._known.pop(place))
            return sample
        return None

    def learn(self, container_id: str, pids: Iterable[int]) -> bool:
        """Find out from a container's processes where containers are; return whether that can be told."""
        for pid in pids:
            try:
                lines = (self._proc / str(pid) / "cgroup").read_text().splitlines()
            except (OSError, UnicodeDecodeError):
                continue
            paths = {name: path for line in lines for name, path in _parse(line, container_id)}
            places = (paths.get(""),) * 2 if self._version == 2 else (paths.get("memory"), paths.get("cpuacct"))
            if places[0] and places[1]:
                self._known.insert(0, self._layout(places[0], places[1]))
                return True
        return False

    def _layout(self, memory: str, cpu: str) -> _Layout:
        trees = (self._root, self._root) if self._version == 2 else (self._root / "memory", self._root / "cpuacct")
        return _Layout(self._version, f"{trees[0]}/{memory}", f"{trees[1]}/{cpu}")


def of_stats(stats: Mapping[str, Any]) -> Sample | None:
    """Return the sample in what the engine's API answers to "stats"; None if the container doesn't run."""
    try:
        memory = stats["memory_stats"]
        details = memory.get("stats") or {}
        cache = details.get("total_inactive_file", details.get("inactive_file", 0))  # version 1's name, version 2's
        cpu_s = stats["cpu_stats"]["cpu_usage"]["total_usage"] / 1e9
        return Sample(time.monotonic(), cpu_s, max(0, int(memory["usage"]) - int(cache)))
    except (KeyError, TypeError, ValueError):
        return None


def _read(layout: _Layout, container_id: str) -> Sample:
    memory, cpu = (place.replace("{id}", container_id) for place in (layout.memory, layout.cpu))
    if layout.version == 2:
        used = int(_content(f"{memory}/memory.current"))
        cpu_s = int(_CPU_USEC.search(_content(f"{cpu}/cpu.stat"))[1]) / 1e6  # type: ignore[index]  # caught by read()
    else:
        used = int(_content(f"{memory}/memory.usage_in_bytes"))
        cpu_s = int(_content(f"{cpu}/cpuacct.usage")) / 1e9
    inactive = _INACTIVE.findall(_content(f"{memory}/memory.stat"))
    return Sample(time.monotonic(), cpu_s, max(0, used - int(inactive[-1] if inactive else 0)))


def _content(path: str) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(fd, _MOST_BYTES)
    finally:
        os.close(fd)


def _parse(line: str, container_id: str) -> Iterable[tuple[str, str]]:
    """Yield (controller, place) of a line of ``/proc/PID/cgroup``, if that is the container's own, and seen from here."""
    _number, _, rest = line.partition(":")
    controllers, _, path = rest.partition(":")
    start, found, end = path.partition(container_id)
    if not found or "/.." in start or "{" in path:
        return
    place = f"{start}{{id}}{end.partition('/')[0]}".lstrip("/")
    for controller in controllers.split(","):
        yield controller, place
