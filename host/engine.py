"""What a host needs of a container engine: to create, start, remove, list what is ours, and be told of deaths.

The host talks to ``Engine`` alone, in the words of this file. What stands behind it is Docker (``docker_engine``), or
processes (``process_engine``, for ``ors-host dev``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

from host.errors import SandboxFailed
from host.isolation import Confinement
from host.placement import Placement

LABEL_SERVER = "ors-host.server"
LABEL_SANDBOX = "ors-host.sandbox"
LABEL_ROLE = "ors-host.role"
LABEL_IMAGE = "ors-host.image"
"""The tag that it was served under: a host that comes after knows by it what holds for the container."""
RUNTIME_DIR = "/run/ors"
"""Where a sandbox's socket directory appears in its container."""

EGRESS_DIR = "/run/ors-net"
"""Where the directory with the proxy's socket appears, if there is a way out."""


class Role(StrEnum):
    """What a container is for; a label on it."""

    SESSION = "session"
    """One session, also while it waits for one."""

    CATALOG = "catalog"


@dataclass(frozen=True)
class Image:
    """An image as it was when looked up; containers are made from ``id``, so a new build under the tag changes nothing."""

    tag: str
    id: str
    labels: Mapping[str, str] = field(compare=False)


@dataclass(frozen=True)
class Limits:
    """What one container may use."""

    memory_bytes: int
    cpus: float
    quota_bytes: int | None = None
    """For what it writes, where the storage driver can hold it to that."""


@dataclass(frozen=True)
class ContainerSpec:
    """All that a container of ours is made from."""

    name: str
    image: Image
    socket_dir: Path | None
    """What appears at ``RUNTIME_DIR``, if anything does."""
    labels: Mapping[str, str]
    environment: Mapping[str, str]
    limits: Limits
    confinement: Confinement
    extra_groups: tuple[int, ...] = ()
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Place in the container → directory of this machine that appears there, read-only."""


@dataclass(frozen=True)
class ContainerRef:
    """A container that exists, running or not."""

    id: str
    name: str
    labels: Mapping[str, str]
    running: bool


@dataclass(frozen=True)
class Death:
    """How a container ended; ``log`` is the end of its output."""

    exit_code: int
    out_of_memory: bool
    log: str = field(repr=False)
    outside: Literal["", "killed", "removed"] = ""
    """What somebody had the engine do to it, if that is how it ended."""


class EngineError(Exception):
    """The engine refused, or didn't answer."""


class EngineSilent(EngineError):
    """The engine didn't answer, or its answer was lost: whether it did what it was asked is not known."""


class NotThere(EngineError):
    """The engine has no such thing; or says so, for it may say so of anything that it is asked."""


class ImageMissing(EngineError):
    """The engine has no such image."""


class CreateUnclear(SandboxFailed):
    """No answer to a create: the container may be there, or may yet appear."""


class Engine(Protocol):
    """One container engine. Whatever it is asked may raise ``EngineError``, unless it says that it doesn't raise."""

    on_request: Callable[[str, str, float], None] | None
    """Told of each request: its name, "ok" or what became of it, and how many seconds it took."""

    # --- What it is like ---

    @property
    def confines(self) -> bool:
        """False if what it calls containers is neither shut in nor limited."""

    @property
    def placement(self) -> Placement:
        """Where this process's paths are on the engine's machine."""

    @property
    def problem(self) -> str | None:
        """What kept it from answering the last ``ping``."""

    @property
    def remapped_root(self) -> tuple[int, int] | None:
        """The (uid, gid) on the host of a container's root under user-namespace remapping, else None."""

    @property
    def far(self) -> str | None:
        """Why the processes of its containers can't be this machine's, if that is known; else None."""

    @property
    def oci_runtimes(self) -> tuple[str, ...]:
        """The names of the OCI runtimes that it can run a container with."""

    @property
    def writes_to_files(self) -> bool:
        """True if what a container writes is in a directory of its own."""

    @property
    def storage_dir(self) -> Path:
        """Where it keeps its containers' files, on its own machine."""

    async def ping(self) -> None:
        """Ask whether it answers; ``problem`` says what came of it. Doesn't raise."""

    async def has_quota(self, tag: str, labels: Mapping[str, str]) -> bool:
        """Tell whether its storage can limit what a container writes, by making one of an image with these labels."""

    # --- Containers, from their images to their removal ---

    async def image(self, tag: str) -> Image:
        """Look an image up.

        Raises:
            ImageMissing: there is none of that name.
        """

    async def create(self, spec: ContainerSpec) -> None:
        """Create a container; from here on it carries its labels and ``remove(spec.name)`` removes it.

        A caller that is cancelled goes on at once, and so does the creation.

        Raises:
            SandboxFailed: the image is gone (``image_not_found``) or the engine refused (``start_failed``).
            CreateUnclear: the engine didn't answer (``start_failed``).
        """

    async def start(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Start a created container; ``on_death`` is called in the event loop when the engine tells of its death.

        Raises:
            SandboxFailed: the engine refused.
        """

    def watch(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Have ``on_death`` called in the event loop when the engine tells of a container's death. Doesn't raise."""

    async def death(self, name: str, *, wait_s: float) -> Death | None:
        """Return how a container ended, waiting ``wait_s`` for it if it is only about to; None if it runs on.

        A container that is gone altogether was removed from outside: exit code 137, no log.
        """

    async def remove(self, name: str) -> None:
        """Kill and remove a container, by name or id, and wait until it is gone; success if it is gone already.

        Raises:
            EngineError: the engine failed; the container may still be there.
        """

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        """Return all containers, running or not, that a host of this id made."""

    # --- What they write and use ---

    def log_files(self, name: str) -> list[Path]:
        """Return where, on its own machine, it writes a container's output, as lines of JSON; the older part first.

        Doesn't raise.
        """

    async def log(self, name: str, *, lines: int) -> bytes:
        """Return the last lines of a container's output, each with its time in front; nothing if there is no such container."""

    async def log_tail(self, name: str) -> str:
        """Return the end of a container's output; empty if there is no such container."""

    async def writable_dirs(self, name: str) -> tuple[Path, ...] | None:
        """Return where, on its machine, what a container writes is kept; None if it isn't there, or not in files."""

    async def written_bytes(self) -> dict[str, int]:
        """Return how much each container has written, by name. Slow: the engine looks at every file."""

    async def init_process(self, name: str) -> tuple[str, int] | None:
        """Return a container's id and, on the engine's machine, the process id of its init; None if it doesn't run."""

    async def processes(self, name: str) -> list[int]:
        """Return the ids of a container's processes; none if it doesn't run, or if ids are others here than on its machine."""

    async def stats(self, name: str) -> Mapping[str, Any] | None:
        """Return what it counts for a container, as Docker's API has it; None if there is no such container."""
