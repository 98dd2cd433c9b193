"""What this machine is like, as far as a host depends on it. Looking changes nothing, and works where half of it is missing."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from host import docker_client
from host.errors import StartupError
from host.kinds import LABEL_RUNTIME
from host.settings import Settings
from host.state_view import StateView

_ENGINE_TIMEOUT_S = 5
_DEFAULT_ENGINE = "unix:///var/run/docker.sock"


@dataclass(frozen=True)
class Room:
    """A file system with a directory on it, or with the nearest one above it that is there."""

    path: Path
    free_bytes: int
    free_inodes: int | None
    """None where the file system doesn't count them."""
    is_writable: bool


@dataclass(frozen=True)
class Machine:
    """All that is looked at. What could not be found out is None."""

    engine_address: str
    engine: Mapping[str, Any] | None
    """The engine's own description; None if none answers, and ``engine_problem`` says why."""
    engine_problem: str | None = None
    images: Mapping[str, str | None] = field(default_factory=dict)
    """Of the images to be served: tag → version of the runtime in it ("" if it is no image of ours), None if it is missing."""
    misplaced: str | None = None
    """Why the engine can't find the state directory, if so."""
    uid: int = 0
    state: StateView | None = None
    state_room: Room | None = None
    engine_room: Room | None = None
    open_files: int | None = None
    """The hard limit; the host takes all of it."""
    pid_max: int | None = None
    threads_max: int | None = None

    @classmethod
    def look(cls, settings: Settings) -> Machine:
        """Look at everything once."""
        address = os.environ.get("DOCKER_HOST") or _DEFAULT_ENGINE
        engine: Mapping[str, Any] | None = None
        problem: str | None = None
        images: dict[str, str | None] = {}
        misplaced: str | None = None
        state_dir = settings.state_dir.expanduser().absolute()
        try:
            client = docker_client.connect(timeout_s=_ENGINE_TIMEOUT_S)
            with contextlib.closing(client):
                engine = client.info()
                images = {tag: _runtime_of(client, tag) for tag in settings.image}
                docker_client.placement_of(client).check(state_dir, "the state directory", "--state-dir")
        except docker_client.EngineUnavailable as exc:
            problem = docker_client.explain(exc.__cause__ if isinstance(exc.__cause__, Exception) else exc)
        except StartupError as exc:
            misplaced = str(exc)
        except docker_client.ERRORS as exc:
            problem = docker_client.explain(exc)
        return cls(
            engine_address=address,
            engine=engine,
            engine_problem=problem,
            images=images,
            misplaced=misplaced,
            uid=os.geteuid(),
            state=StateView.of(state_dir),
            state_room=_room(state_dir),
            engine_room=_room(Path(engine["DockerRootDir"]), exact=True) if engine and _is_local(address) else None,
            open_files=_limit(resource.RLIMIT_NOFILE),
            pid_max=_number(Path("/proc/sys/kernel/pid_max")),
            threads_max=_number(Path("/proc/sys/kernel/threads-max")),
        )

    @property
    def engine_is_local(self) -> bool:
        """False if the engine is reached over a network, so that it may be another machine's."""
        return _is_local(self.engine_address)


def _is_local(address: str) -> bool:
    return (
        address.startswith(("unix://", "/")) or "//127." in address or "//localhost" in address or "//[::1]" in address
    )


def _runtime_of(client: docker_client.APIClient, tag: str) -> str | None:
    try:
        image: Mapping[str, Any] = client.inspect_image(tag)  # type: ignore[no-untyped-call]
        return str((image["Config"].get("Labels") or {}).get(LABEL_RUNTIME, ""))
    except docker_client.NotFound:
        return None


def _room(path: Path, *, exact: bool = False) -> Room | None:
    for place in [path] if exact else [path, *path.parents]:
        try:
            status = os.statvfs(place)
        except OSError:
            continue
        # btrfs and some others count no inodes, and say 0 of 0.
        inodes = status.f_favail if status.f_files else None
        return Room(place, status.f_bavail * status.f_frsize, inodes, os.access(place, os.W_OK | os.X_OK))
    return None


def _limit(which: int) -> int | None:
    _soft, hard = resource.getrlimit(which)
    return None if hard == resource.RLIM_INFINITY else hard


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
