"""Keeps containers from filling the disk, where the engine's storage driver has no quota of its own.

What a container writes is measured from outside, and it is ended when it is over its limits. Measuring costs; so how much space
the disk has is asked often, which is cheap, and containers are measured when it has shrunk noticeably, or else once in a while:
never more of the time than a tenth.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread
import structlog

from host import files
from host.engine import Engine, EngineError
from host.errors import Failure, Reason
from host.files import TooDeep, Usage

log = structlog.get_logger()

_LOOK_S = 0.5
_ROUND_S = 10.0
_REST = 9
"""Rest after a round, in lengths of the round."""

_NOTICEABLE = 8
"""The disk has shrunk noticeably when it has by one in so many of one container's limits."""


@dataclass
class _Watched:
    on_full: Callable[[], None]
    limit: Usage
    roots: tuple[Path, ...] | None = None
    last: Usage = field(default_factory=lambda: Usage(0, 0))
    failure: Failure | None = None


class DiskWatch:
    """Watches the containers it is told of, while ``run`` runs."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._watched: dict[str, _Watched] = {}
        self._thread = anyio.CapacityLimiter(1)

    @property
    def measures_files(self) -> bool:
        """True if the containers' files can be read here; else the engine is asked, which doesn't count inodes."""
        engine = self._engine
        if os.geteuid() != 0 or not engine.writes_to_files:
            return False
        return engine.storage_dir.is_dir() and engine.placement.on_engine(engine.storage_dir) == engine.storage_dir

    def watch(self, name: str, on_full: Callable[[], None], limit: Usage) -> None:
        """Watch a container that is about to be made; ``on_full`` is called once if it goes over its limits."""
        self._watched[name] = _Watched(on_full, limit)

    def unwatch(self, name: str) -> None:
        """Forget a container."""
        self._watched.pop(name, None)

    def failure(self, name: str) -> Failure | None:
        """Return why a container was found to be over its limits, if it was."""
        watched = self._watched.get(name)
        return watched.failure if watched else None

    async def run(self) -> None:
        """Watch until cancelled."""
        free = self._free()
        next_round = time.monotonic() + _ROUND_S
        while True:
            await anyio.sleep(_LOOK_S)
            now_free = self._free()
            shrunk = Usage(free.bytes_ - now_free.bytes_, free.inodes - now_free.inodes)
            pressed = shrunk.exceeds(self._noticeable())
            if not pressed and time.monotonic() < next_round:
                continue
            started = time.monotonic()
            try:
                await self._round(pressed=pressed)
            except (EngineError, OSError) as exc:
                log.warning("disk_not_measured", error=str(exc))
            free = self._free()
            next_round = time.monotonic() + max(_ROUND_S, _REST * (time.monotonic() - started))

    def _noticeable(self) -> Usage:
        """Return by how much the disk shrinks when the container with the smallest limits may be about to fill it."""
        limits = [watched.limit for watched in self._watched.values()]
        return Usage(
            min((limit.bytes_ // _NOTICEABLE for limit in limits), default=0),
            min((limit.inodes // _NOTICEABLE for limit in limits), default=0),
        )

    def _free(self) -> Usage:
        if not self.measures_files:
            return Usage(0, 0)
        found = os.statvfs(self._engine.storage_dir)
        return Usage(found.f_bfree * found.f_frsize, found.f_ffree)

    async def _round(self, *, pressed: bool) -> None:
        """Measure all, those first that had most when last seen."""
        sizes = {} if self.measures_files else await self._engine.written_bytes()
        for name, watched in sorted(self._watched.items(), key=lambda item: -item[1].last.bytes_):
            if watched.failure is not None or name not in self._watched:
                continue
            try:
                if self.measures_files:
                    watched.last = await self._measure(name, watched, pressed=pressed)
                else:
                    watched.last = Usage(sizes.get(name, 0), 0)
            except TooDeep:
                self._full(name, watched, "the container's directories are nested too deep to be measured")
                continue
            if watched.last.exceeds(watched.limit):
                self._full(name, watched, _words(watched))

    async def _measure(self, name: str, watched: _Watched, *, pressed: bool) -> Usage:
        if watched.roots is None:
            watched.roots = await self._engine.writable_dirs(name)
        if watched.roots is None:
            return Usage(0, 0)
        roots = watched.roots
        usage = await anyio.to_thread.run_sync(files.usage_of, roots, watched.limit, limiter=self._thread)
        if pressed and not usage.exceeds(watched.limit):
            pids = await self._engine.processes(name)
            unnamed = await anyio.to_thread.run_sync(files.deleted_bytes, pids, limiter=self._thread)
            usage = Usage(usage.bytes_ + unnamed, usage.inodes)
        return usage

    def _full(self, name: str, watched: _Watched, message: str) -> None:
        log.warning("disk_full", container=name, message=message)
        watched.failure = Failure(Reason.DISK_FULL, message)
        watched.on_full()


def _words(watched: _Watched) -> str:
    if watched.last.bytes_ > watched.limit.bytes_:
        return f"the container wrote more than its {watched.limit.bytes_ / 2**20:.0f} MiB to the disk"
    return f"the container made more than its {watched.limit.inodes} files and directories"
