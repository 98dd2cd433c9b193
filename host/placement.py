"""Where this process's paths are on the engine's machine, which is where containers find what is mounted into them.

Nearly always they are the same. They are not where the host is in a container of that engine itself: there, only what is
mounted into it has a place on the machine at all. Which container it is the kernel's list of mounts tells; what is mounted,
the engine.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from host.errors import StartupError

_OWN_MOUNTS = Path("/proc/self/mountinfo")
_OWN_FILES = re.compile(r"/([0-9a-f]{64})/(?:userdata/)?(?:hostname|hosts|resolv\.conf) ")
"""An engine mounts these files from a directory that has the container's id as its name (Docker; Podman)."""


@dataclass(frozen=True)
class Mount:
    """A directory of the engine's machine, and where it is here."""

    here: Path
    there: Path


@dataclass(frozen=True)
class Placement:
    """Paths here → paths on the engine's machine."""

    mounts: tuple[Mount, ...] | None = None
    """None if the two are one: this is no container of that engine's."""
    shares_processes: bool = True
    """True if process ids are here what they are on the engine's machine."""

    @classmethod
    def in_container(cls, inspected: Mapping[str, Any]) -> Self:
        """Return the placement inside of a container, as the engine describes it."""
        kept = ("bind", "volume")
        mounts = tuple(
            Mount(Path(mount["Destination"]), Path(mount["Source"]))
            for mount in inspected.get("Mounts") or ()
            if mount.get("Type") in kept and mount.get("Source")
        )
        # The deepest first: it is the one that is seen.
        deepest_first = sorted(mounts, key=lambda mount: -len(mount.here.parts))
        return cls(tuple(deepest_first), inspected["HostConfig"].get("PidMode") == "host")

    def on_engine(self, path: Path) -> Path | None:
        """Return where a path is on the engine's machine; None if it is only in this container."""
        if self.mounts is None:
            return path
        resolved = path.resolve()
        for mount in self.mounts:
            if resolved.is_relative_to(mount.here):
                return mount.there / resolved.relative_to(mount.here)
        return None

    def here(self, path: Path) -> Path:
        """Return where a path of the engine's machine is here; unchanged if it is nowhere, or no other."""
        for mount in sorted(self.mounts or (), key=lambda mount: -len(mount.there.parts)):
            if path.is_relative_to(mount.there):
                return mount.here / path.relative_to(mount.there)
        return path

    def check(self, path: Path, what: str, flag: str) -> None:
        """Refuse what containers could not be given.

        Raises:
            StartupError: the path is only in this container; the sentence says how to start that instead.
        """
        if self.on_engine(path) is None:
            raise StartupError(
                f"ors-host runs in a container, and {what} {path} is only in there, where the engine, which gives it to "
                f"sessions' containers, can't find it. Mount it, best from the same path: docker run --volume {path}:{path} …; "
                f"or name with {flag} a directory that is mounted"
            )


def own_container_ids(mountinfo: Path = _OWN_MOUNTS) -> Iterator[str]:
    """Yield what may be the id of the container that this process is in: to be asked of the engine, which may not know it."""
    try:
        text = mountinfo.read_text(errors="replace")
    except OSError:
        return
    yield from dict.fromkeys(_OWN_FILES.findall(text))
