"""What all sandboxes of a host share, and the book of those that are alive: what is in no book is swept up."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import anyio
import structlog

from host.channel import Greeting
from host.data import data_folders
from host.disk import DiskWatch
from host.egress import Egress, Outlet
from host.engine import LABEL_ROLE, ContainerRef, Engine, EngineError, Role
from host.errors import StartupError
from host.intake import Intake
from host.isolation import Profile
from host.kept_logs import KeptLogs
from host.metrics import Metrics
from host.netns import Namespaces, NoEntry
from host.patience import Patience
from host.rules import Rules
from host.settings import Settings
from host.state import StateDir
from host.usage import UsageWatch

log = structlog.get_logger()

OUTLET_NAME = "net"
"""The directory of the way out, in a sandbox's directory."""

_REMOVE_TIMEOUT_S = 30.0
"""For a removal that somebody waits for; then it is tried again in the background."""

_REMOVE_TRIES = 2
_REMOVE_AGAIN_S = 0.5

LATE_S = 10.0
"""How long an engine that answers may take to finish what it was asked to create before, and of which nobody heard."""


class SandboxHost:
    """What all sandboxes of this host share, and the list of those that are alive."""

    def __init__(
        self,
        engine: Engine,
        state: StateDir,
        settings: Settings,
        *,
        egress: Egress | None = None,
        patience: Patience | None = None,
        metrics: Metrics | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.state = state
        self.settings = settings
        self.starting = anyio.CapacityLimiter(settings.start_concurrency)
        self.has_quota = False
        """True if the storage driver can hold a container to what it may write."""
        self._rules = {tag: self._rules_of(tag) for tag in settings.image}
        self.intake = Intake(max_held_bytes=4 * settings.max_frame)
        self.namespaces = Namespaces()
        self.data = data_folders(settings.data_folders, settings.image, owner=engine.remapped_root or (0, 0))
        self.egress = egress
        self.disk = DiskWatch(engine)
        self.patience = patience or Patience()
        self.metrics = metrics or Metrics()
        self._outlets: dict[str, Outlet] = {}
        self._heeded = False
        self._alive: set[str] = set()
        self._unclear: set[str] = set()
        self._leftovers: dict[str, float | None] = {}
        """By name: until when it counts although the engine lists no such container; None if that is not known yet."""
        self._clock = clock
        self.usage = UsageWatch(engine, state.server_id, lambda: self._alive)
        self.kept_logs = KeptLogs(engine, state.path, settings)

    def close(self) -> None:
        """End what works for all sandboxes, when none is left: the reading process, the thread that enters networks."""
        self.intake.close()
        self.namespaces.close()

    @property
    def leftovers(self) -> int:
        """How many sessions' containers are still there, or may be, although nothing owns them any more."""
        return len(self._leftovers)

    def heed(self, greeting: Greeting) -> None:
        """Say, once, if agents can end their own sessions by memory although they should not."""
        if greeting.agent_goes_first is False and not self._heeded:
            self._heeded = True
            log.warning(
                "agent_can_outlast_runtime",
                consequence="an agent that uses up the memory can end its own session as out_of_memory",
                reason="the containers have no Landlock (Linux 5.19, not under gVisor), or an engine that forbids it",
            )

    async def check_servers(self, tag: str) -> None:
        """See whether an image's own server can be reached.

        Raises:
            StartupError: it can't; the sentence says why, and what to do.
        """
        problem = self.engine.far
        if problem is None and self.rules(tag).profile is Profile.GVISOR:
            problem = "under gvisor the container's network is gVisor's own, which can't be entered; choose another --isolation"
        if problem is None:
            try:
                await self.namespaces.check()
            except NoEntry as exc:
                problem = str(exc)
        if problem is not None:
            raise StartupError(
                f"image {tag!r} has an ORS server of its own, which is reached from inside its container's network, and that "
                f"can't be done here: {problem}. An image built with ors-host build needs none of this"
            )

    def rules(self, tag: str) -> Rules:
        """Return what holds for an image's containers."""
        return self._rules.get(tag) or self._rules_of(tag)

    def _rules_of(self, tag: str) -> Rules:
        return Rules.of(self.settings, tag, remapped=self.engine.remapped_root is not None)

    def open_outlet(self, name: str, directory: Path, rules: Rules) -> None:
        """Open a sandbox's way out, if it may have one; it is closed with the sandbox.

        Raises:
            OSError: its socket can't be made.
        """
        if self.egress is not None and rules.egress is not None:
            with structlog.contextvars.bound_contextvars(container=name):
                self._outlets[name] = self.egress.outlet(directory / OUTLET_NAME, rules.egress)

    def container_name(self, sandbox_id: str) -> str:
        """Return what a sandbox's container is called."""
        return f"ors-{self.state.server_id[:8]}-{sandbox_id}"

    def enlist(self, name: str) -> None:
        """Keep ``sweep()`` off a container that is about to be created."""
        self._alive.add(name)

    def doubt(self, name: str) -> None:
        """Take note that a container may yet appear although its creation failed."""
        self._unclear.add(name)

    def expect_late(self, listed: Iterable[ContainerRef]) -> None:
        """Count what an earlier host may have asked the engine for as it ended, and the engine doesn't list yet.

        Of each it had made the directory before; a session was given to none. One too many is counted for ``LATE_S``.
        """
        names = {container.name for container in listed} | self._alive
        for sandbox_id in self.state.sandbox_ids():
            if (name := self.container_name(sandbox_id)) not in names and self.state.assignment(sandbox_id) is None:
                self._leftovers[name] = None

    async def dispose(self, name: str, sandbox_id: str, *, role: Role) -> None:
        """Remove a sandbox's container and its directory. What the engine doesn't remove now is left to ``sweep()``."""
        if outlet := self._outlets.pop(name, None):
            await outlet.aclose()
        gone = False
        try:
            async with self.kept_logs.keeping(name, sandbox_id, self.state.assignment(sandbox_id)):
                gone = await self._removed(name)
        finally:
            if role is Role.SESSION and (not gone or name in self._unclear):
                # First: it never stops being counted.
                self._leftovers[name] = None if name in self._unclear else self._clock()
            self._unclear.discard(name)
            self.disk.unwatch(name)
            self._alive.discard(name)
            self.state.forget(sandbox_id)

    async def _removed(self, name: str) -> bool:
        error: EngineError | None = None
        with self.patience.effort(_REMOVE_TIMEOUT_S, vital=True):
            for attempt in range(_REMOVE_TRIES):
                await anyio.sleep(attempt * _REMOVE_AGAIN_S)
                try:
                    await self.engine.remove(name)
                    return True
                except EngineError as exc:
                    error = exc
        words = str(error) if error else "the engine does not answer"
        log.warning("container_not_removed", container=name, error=words, next="tried again in the background")
        return False

    async def sweep(self) -> int:
        """Remove every container and directory of this host that no living sandbox owns; return how many containers.

        That is what an earlier process left behind, and what could not be removed when it should have been.

        Raises:
            EngineError: the engine failed, for one of them at least; the others are removed.
        """
        known, alive = set(self._leftovers), set(self._alive)
        listed = await self.engine.list_ours(self.state.server_id)
        found = [container for container in listed if container.name not in alive | self._alive]
        errors: list[EngineError] = []

        async def remove(container: ContainerRef) -> None:
            try:
                await self.engine.remove(container.id)
                self._leftovers.pop(container.name, None)
            except EngineError as exc:
                errors.append(exc)

        self._forget_missing(known - {container.name for container in found})
        self._leftovers.update((c.name, self._clock()) for c in found if c.labels.get(LABEL_ROLE) == Role.SESSION)
        # First: the engine refuses to make a container that is late if what it is to mount is gone.
        alive_ids = {name.rpartition("-")[2] for name in self._alive}
        for sandbox_id in self.state.sandbox_ids() - alive_ids:
            self.state.forget(sandbox_id)
        async with anyio.create_task_group() as tasks:
            for container in found:
                tasks.start_soon(remove, container)
        if errors:
            raise errors[0]
        return len(found)

    def _forget_missing(self, names: Iterable[str]) -> None:
        """Stop counting what the engine doesn't list; what may be late is waited for, from when the engine first answers."""
        now = self._clock()
        for name in names:
            until = self._leftovers[name]
            if until is None:
                self._leftovers[name] = now + LATE_S
            elif until <= now:
                del self._leftovers[name]
