"""An engine for ``ors-host dev``: what it calls containers are processes of this machine, and nothing is isolated.

It stands where the Docker engine stands, so that all else is as in earnest: the channel, sessions, their ends. Its one image is
the author's folder, whose id follows from the files in it: a changed file is an image built anew, which the host takes over.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import anyio
from anyio.abc import Process, TaskGroup

from host import __version__
from host.engine import ContainerRef, ContainerSpec, Death, Image
from host.errors import Failure, Reason, SandboxFailed
from host.kinds import LABEL_RUNTIME
from host.placement import Placement

_PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "VIRTUAL_ENV", "SYSTEMROOT")
"""Of this process's variables: those that programs need to be found. Keys in the others are not the environment's."""

_SUFFIXES = frozenset({".py", ".json", ".jsonl", ".toml", ".txt", ".yaml", ".yml", ".csv", ".md"})
_PASSED_OVER = frozenset({"__pycache__", "node_modules", "venv"})
_MOST_FILES = 5000
_END_S = 1.0


@dataclass
class _Container:
    spec: ContainerSpec
    workspace: Path
    process: Process | None = None
    ended: anyio.Event = field(default_factory=anyio.Event)


class ProcessEngine:
    """An ``Engine`` of processes. Opened with ``async with ProcessEngine.over(…)``."""

    confines = False
    placement = Placement()
    problem: str | None = None
    far: str | None = None
    on_request: Callable[[str, str, float], None] | None = None

    def __init__(self, directory: Path, specs: Sequence[str], tasks: TaskGroup) -> None:
        self._directory = directory
        self._specs = tuple(specs)
        self._tasks = tasks
        self._containers: dict[str, _Container] = {}

    @classmethod
    @asynccontextmanager
    async def over(cls, directory: Path, specs: Sequence[str]) -> AsyncIterator[Self]:
        """Have an engine whose image is the folder ``directory``, with the environments ``specs`` (as in an image's CMD)."""
        async with anyio.create_task_group() as tasks:
            engine = cls(directory, specs, tasks)
            try:
                yield engine
            finally:
                with anyio.CancelScope(shield=True):
                    for name in tuple(engine._containers):
                        await engine.remove(name)
            tasks.cancel_scope.cancel()

    # --- What it is like ---

    @property
    def remapped_root(self) -> tuple[int, int]:
        """Who a runtime is to this machine: this process's own user."""
        return os.geteuid(), os.getegid()

    @property
    def oci_runtimes(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def writes_to_files(self) -> bool:
        """Nothing is limited, so nothing is measured."""
        return False

    @property
    def storage_dir(self) -> Path:
        """Where work directories are made."""
        return Path(tempfile.gettempdir())

    async def ping(self) -> None:
        """It is always there."""

    async def has_quota(self, tag: str, labels: Mapping[str, str]) -> bool:
        """It has none."""
        return False

    # --- Images and containers ---

    async def image(self, tag: str) -> Image:
        """Return the folder as it is now."""
        return Image(tag, await anyio.to_thread.run_sync(self._digest), {LABEL_RUNTIME: __version__})

    async def create(self, spec: ContainerSpec) -> None:
        """Make a work directory for a process."""
        self._containers[spec.name] = _Container(spec, Path(tempfile.mkdtemp(prefix="ors-dev-")))

    async def start(self, name: str, *, on_death: Callable[[], None]) -> None:
        """Start the process. Raises SandboxFailed if it can't be."""
        container = self._containers[name]
        try:
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "sandbox_runtime", *self._specs],
                cwd=self._directory,
                env=self._environ(container),
                stdin=subprocess.DEVNULL,
                stdout=sys.stderr,  # what the author's code prints is seen at once
                stderr=None,
                start_new_session=True,
            )
        except OSError as exc:
            raise SandboxFailed(Failure(Reason.START_FAILED, str(exc))) from exc
        container.process = process

        async def wait() -> None:
            await process.wait()
            container.ended.set()
            on_death()

        self._tasks.start_soon(wait)

    def watch(self, name: str, *, on_death: Callable[[], None]) -> None:
        """``start`` watches."""

    async def death(self, name: str, *, wait_s: float) -> Death | None:
        """Return how a process ended, waiting ``wait_s`` for it."""
        if (container := self._containers.get(name)) is None or container.process is None:
            return Death(137, False, "", "removed")
        with anyio.move_on_after(wait_s):
            await container.ended.wait()
        code = container.process.returncode
        return None if code is None else Death(128 - code if code < 0 else code, False, "")

    def log_files(self, name: str) -> list[Path]:
        """Return none: as ``log_tail``."""
        return []

    async def log(self, name: str, *, lines: int) -> bytes:
        """Return nothing: as ``log_tail``."""
        return b""

    async def log_tail(self, name: str) -> str:
        """Return nothing: it was shown as it came."""
        return ""

    async def remove(self, name: str) -> None:
        """End a process and what it started, and remove its work directory; fine if it is gone."""
        if (container := self._containers.pop(name, None)) is None:
            return
        if container.process is not None and container.process.returncode is None:
            family = [container.process.pid, *_descendants(container.process.pid)]
            _signal(family, signal.SIGTERM)
            with anyio.move_on_after(_END_S):
                await container.ended.wait()
            _signal(family, signal.SIGKILL)
            await container.ended.wait()
        await anyio.to_thread.run_sync(lambda: shutil.rmtree(container.workspace, ignore_errors=True))

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        """Return nothing: no host comes after this one, and what it has it knows."""
        return []

    # --- What they write and use: nothing is measured ---

    async def writable_dirs(self, name: str) -> None:
        """Return None."""

    async def written_bytes(self) -> dict[str, int]:
        """Return nothing."""
        return {}

    async def init_process(self, name: str) -> None:
        """Return None."""

    async def processes(self, name: str) -> list[int]:
        """Return none."""
        return []

    async def stats(self, name: str) -> Mapping[str, Any] | None:
        """Return None."""
        return None

    def _environ(self, container: _Container) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
            **container.spec.environment,
            "PYTHONPATH": os.pathsep.join([str(self._directory), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "ORS_RUNTIME_SOCKET_DIR": str(container.spec.socket_dir),
            "ORS_RUNTIME_WORKSPACE": str(container.workspace),
            "ORS_RUNTIME_UNSAFE_SAME_USER": "1",
        }

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for number, path in enumerate(_sources(self._directory)):
            if number == _MOST_FILES:
                break
            with contextlib.suppress(OSError):  # an editor that saves removes it for a moment
                status = path.stat()
                digest.update(f"{path}\0{status.st_mtime_ns}\0{status.st_size}\0".encode())
        return f"sha256:{digest.hexdigest()}"


def _sources(directory: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(directory):
        folders[:] = sorted(name for name in folders if not name.startswith(".") and name not in _PASSED_OVER)
        yield from (Path(folder, name) for name in sorted(names) if Path(name).suffix in _SUFFIXES)


def _descendants(pid: int) -> list[int]:
    """Return what a process has started, and what that has; not what has cut itself off."""
    found: list[int] = []
    with contextlib.suppress(OSError, ValueError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *_descendants(child)]
    return found


def _signal(pids: Sequence[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
