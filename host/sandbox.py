"""One container and the channel to its runtime: opened together, used for one thing, removed together.

A sandbox is never given back or used again. ``Sandbox.open`` holds no cancel scope or task group at its ``yield``, so that the
task that opens one need not be the one that closes it.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import anyio
import structlog

from host import tracing
from host.channel import Channel, ChannelBroken, ChannelClosed, Greeting, ProtocolViolation
from host.data import DATA_DIR, data_folders
from host.disk import DiskWatch
from host.doorstep import shared_groups
from host.egress import Egress, Outlet
from host.engine import (
    EGRESS_DIR,
    LABEL_IMAGE,
    LABEL_ROLE,
    LABEL_SANDBOX,
    LABEL_SERVER,
    ContainerRef,
    ContainerSpec,
    CreateUnclear,
    Engine,
    EngineError,
    Image,
)
from host.errors import Failure, InvalidRequest, Reason, SandboxFailed, StartupError
from host.intake import Intake
from host.isolation import Profile
from host.kept_logs import KeptLogs
from host.kinds import LABEL_KIND, LABEL_PORT, LABEL_STATE, Kind, kind_of, port_of
from host.metrics import Metrics
from host.netns import Namespace, Namespaces, NoEntry
from host.patience import Patience
from host.rules import Rules
from host.runtime_channel import RuntimeChannel
from host.server_channel import ServerChannel
from host.settings import Settings
from host.state import Assignment, StateDir
from host.usage import UsageWatch
from sandbox_runtime.frames import FrameTooLarge
from sandbox_runtime.messages import EpisodeState, Method

log = structlog.get_logger()

HASH_SEED = "0"
"""One for all: an environment that shuffles by ``hash()`` must do so alike in the catalog and in every session."""

_DEATH_WAIT_S = 1.2
"""From a runtime's end to its container's, for the engine to notice."""

_EXPLAIN_S = 1.8
"""For finding out why a container died, that wait included: whoever has to do with it is to know within two seconds."""

_LOOKUP_S = 3.0
"""For what the engine can tell of a container, when that only adds words to a failure."""

_ADOPT_TIMEOUT_S = 10.0
"""A runtime dials about once a second; one that doesn't in this time is stuck."""

_REMOVE_TIMEOUT_S = 30.0
"""For a removal that somebody waits for; then it is tried again in the background."""

_REMOVE_TRIES = 2
_REMOVE_AGAIN_S = 0.5
_MAX_LOG_CHARS = 4000


OUTLET_NAME = "net"
"""The directory of the way out, in a sandbox's directory."""


class Role(StrEnum):
    """What a container is for; a label on it."""

    SESSION = "session"
    """One session, also while it waits for one."""

    CATALOG = "catalog"


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
        self._leftovers: set[str] = set()
        self.usage = UsageWatch(engine, state.server_id, lambda: self._alive)
        self.kept_logs = KeptLogs(engine, state.path, settings)

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

    def enlist(self, name: str) -> None:
        """Keep ``sweep()`` off a container that is about to be created."""
        self._alive.add(name)

    def doubt(self, name: str) -> None:
        """Take note that a container may yet appear although its creation failed."""
        self._unclear.add(name)

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
                self._leftovers.add(name)  # first: it never stops being counted
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
                self._leftovers.discard(container.name)
            except EngineError as exc:
                errors.append(exc)

        self._leftovers -= known
        self._leftovers.update(c.name for c in found if c.labels.get(LABEL_ROLE) == Role.SESSION)
        async with anyio.create_task_group() as tasks:
            for container in found:
                tasks.start_soon(remove, container)
        alive_ids = {name.rpartition("-")[2] for name in self._alive}
        for sandbox_id in self.state.sandbox_ids() - alive_ids:
            self.state.forget(sandbox_id)
        if errors:
            raise errors[0]
        return len(found)


class Sandbox:
    """An open sandbox: its runtime has said hello, or its server is healthy."""

    _greeting: Greeting

    def __init__(self, host: SandboxHost, name: str, sandbox_id: str, channel: Channel, rules: Rules) -> None:
        self.name = name
        self.rules = rules
        self._host = host
        self._sandbox_id = sandbox_id
        self._channel = channel
        self._left_running = False
        self.waited = False
        """True if it was started beforehand."""

    @classmethod
    @asynccontextmanager
    async def open(cls, host: SandboxHost, image: Image, *, role: Role) -> AsyncIterator[Self]:
        """Start a container from ``image`` and wait for what is in it; remove both when the block is left.

        Raises:
            SandboxFailed: it could not be started, or nothing was heard from it in time.
        """
        sandbox_id = host.state.new_sandbox_id()
        name = f"ors-{host.state.server_id[:8]}-{sandbox_id}"
        rules = host.rules(image.tag)
        kind = kind_of(image.labels, rules.kind)
        port = port_of(image.labels, rules.server_port)
        channel = _channel(host, name, sandbox_id, kind, port)
        directory = host.state.sandbox_dir(sandbox_id)
        ours = kind is Kind.RUNTIME
        spec = ContainerSpec(
            name=name,
            image=image,
            socket_dir=directory if ours else None,
            labels={
                LABEL_SERVER: host.state.server_id,
                LABEL_SANDBOX: sandbox_id,
                LABEL_ROLE: role,
                LABEL_IMAGE: image.tag,
                LABEL_KIND: kind,
                **({} if ours else {LABEL_PORT: str(port), LABEL_STATE: str(host.state.path)}),
            },
            environment={
                **rules.environment,
                "PYTHONHASHSEED": HASH_SEED,
                **({"ORS_RUNTIME_RECONNECT_S": f"{host.settings.reconnect_window_s:g}"} if ours else {}),
            },
            mounts=_mounts(host, image, directory),
            limits=replace(rules.limits, quota_bytes=rules.usage.bytes_ if host.has_quota else None),
            confinement=rules.confinements[kind],
            extra_groups=shared_groups() if ours else (),
        )
        host.enlist(name)
        host.disk.watch(name, channel.peer_died, rules.usage)
        async with cls._owned(host, name, sandbox_id, channel, role, rules) as sandbox:
            sandbox._greeting = await cls._start(host, spec, channel, rules)
            host.heed(sandbox._greeting)
            yield sandbox

    @classmethod
    @asynccontextmanager
    async def adopt(cls, host: SandboxHost, container: ContainerRef) -> AsyncIterator[Self]:
        """Wait for what is in a container that an earlier host left running; remove it when the block is left.

        Its name must have been enlisted.

        Raises:
            SandboxFailed: it died, or nothing is heard from it.
        """
        sandbox_id = container.labels[LABEL_SANDBOX]
        kind = Kind(container.labels.get(LABEL_KIND, Kind.RUNTIME))
        channel = _channel(host, container.name, sandbox_id, kind, port_of(container.labels))
        rules = host.rules(container.labels.get(LABEL_IMAGE, ""))
        async with cls._owned(host, container.name, sandbox_id, channel, Role.SESSION, rules) as sandbox:
            host.engine.watch(container.name, on_death=channel.peer_died)
            host.disk.watch(container.name, channel.peer_died, rules.usage)
            try:
                await channel.listen(owner=host.engine.remapped_root, again=True)
                host.open_outlet(container.name, host.state.sandbox_dir(sandbox_id), rules)
                with anyio.fail_after(_ADOPT_TIMEOUT_S):
                    sandbox._greeting = await channel.wait_hello()
            except OSError as exc:  # TimeoutError is one
                message = f"the {kind} did not come back to the new host ({exc or type(exc).__name__})"
                raise SandboxFailed(Failure(Reason.CONTAINER_DIED, message)) from exc
            except (ProtocolViolation, ChannelBroken):
                raise SandboxFailed(await sandbox.wait_failed()) from None
            yield sandbox

    @classmethod
    @asynccontextmanager
    async def _owned(
        cls, host: SandboxHost, name: str, sandbox_id: str, channel: Channel, role: Role, rules: Rules
    ) -> AsyncIterator[Self]:
        """Own a container and its channel for the length of the block, whatever has become of them by then."""
        sandbox = cls(host, name, sandbox_id, channel, rules)
        try:
            yield sandbox
        finally:
            await channel.aclose()
            if not sandbox._left_running:
                with anyio.CancelScope(shield=True):
                    await host.dispose(name, sandbox_id, role=role)

    def leave_running(self) -> None:
        """Hang up, and let the container live on when this is closed, for the next host to adopt.

        At once, so that nothing that is cancelled from here on is cancelled in the runtime as well.
        """
        self._left_running = True
        self._channel.hang_up()

    def assign(self, sid: str, environment: str) -> None:
        """Let it be this session's, from now to its end; a host that comes after this one finds it as such.

        Raises:
            SandboxFailed: that can't be written down.
        """
        try:
            self._host.state.assign(self._sandbox_id, Assignment(sid, environment, time.time()))
        except OSError as exc:
            message = f"the state directory can't be written: {exc.strerror}"
            raise SandboxFailed(Failure(Reason.START_FAILED, message)) from exc

    def touch(self) -> None:
        """Take note that it was in use just now."""
        self._host.state.touch(self._sandbox_id)

    @property
    def environments(self) -> tuple[str, ...]:
        """The names of the environment classes in it, in the order given."""
        return tuple(self._greeting.environments)

    @property
    def episode(self) -> EpisodeState | None:
        """The episode that was going on when this host began to ask."""
        return self._greeting.episode

    @classmethod
    async def _start(cls, host: SandboxHost, spec: ContainerSpec, channel: Channel, rules: Rules) -> Greeting:
        try:
            await channel.listen(owner=host.engine.remapped_root)
            host.open_outlet(spec.name, host.state.sandbox_dir(spec.labels[LABEL_SANDBOX]), rules)
        except OSError as exc:
            message = f"the socket directory could not be made: {exc.strerror}"
            raise SandboxFailed(Failure(Reason.START_FAILED, message)) from exc
        timeout_s = host.settings.start_timeout_s
        try:
            async with host.starting:
                # Seen through, so that it is known whether there is a container to remove.
                with host.patience.effort(timeout_s, vital=True) as creating:
                    await host.engine.create(spec)
                if creating.cancelled_caught:
                    host.doubt(spec.name)
                    raise TimeoutError
                with anyio.fail_after(timeout_s):
                    await host.engine.start(spec.name, on_death=channel.peer_died)
            with anyio.fail_after(timeout_s):
                with tracing.span("runtime.hello"):
                    return await channel.wait_hello()
        except TimeoutError:
            output = ""
            with contextlib.suppress(EngineError), anyio.move_on_after(_LOOKUP_S):  # the engine may be what hangs
                output = _quote(await host.engine.log_tail(spec.name))
            message = f"image {spec.image.tag!r}: {channel.silence} within {timeout_s:g} s{output}"
            raise SandboxFailed(Failure(Reason.START_TIMEOUT, message)) from None
        except CreateUnclear:
            host.doubt(spec.name)
            raise
        except ProtocolViolation as exc:
            raise SandboxFailed(Failure(Reason.PROTOCOL_VIOLATION, str(exc))) from exc
        except ChannelBroken as exc:
            failure = await cls._explain_death(host, spec.name, rules, exc)
            if failure.reason is Reason.CONTAINER_DIED:
                failure = Failure(Reason.START_FAILED, failure.message)
            raise SandboxFailed(failure) from None

    async def request(
        self, method: Method, params: Mapping[str, Any], *, timeout_s: float, cancel_grace_s: float = 0
    ) -> Any:
        """Ask what is in it; see ``Channel.request``. The answer is untrusted: validate it.

        Raises:
            RuntimeFault, InvalidAnswer, RequestTimeout: as the channel does.
            SandboxFailed: the sandbox is dead, or died while this waited.
            InvalidRequest: the request is larger than a message may be.
        """
        try:
            with tracing.span(f"runtime {method}", "client", rpc__system__name="jsonrpc", rpc__method=method):
                return await self._channel.request(method, params, timeout_s=timeout_s, cancel_grace_s=cancel_grace_s)
        except FrameTooLarge as exc:
            raise InvalidRequest(str(exc)) from exc
        except ChannelClosed:
            raise SandboxFailed(Failure(Reason.DELETED, "the session was ended")) from None
        except (ChannelBroken, ProtocolViolation):
            raise SandboxFailed(await self.wait_failed()) from None

    async def wait_failed(self) -> Failure:
        """Wait until the sandbox is of no more use; return why."""
        end = await self._channel.wait_ended()
        if isinstance(end, ProtocolViolation):
            return Failure(Reason.PROTOCOL_VIOLATION, str(end))
        return await self._explain_death(self._host, self.name, self.rules, end)

    @property
    def failed(self) -> bool:
        """True once nothing more can be asked of it."""
        return self._channel.ended

    @staticmethod
    async def _explain_death(host: SandboxHost, name: str, rules: Rules, end: Exception) -> Failure:
        if full := host.disk.failure(name):
            return full
        try:
            with anyio.fail_after(_EXPLAIN_S):
                death = await host.engine.death(name, wait_s=_DEATH_WAIT_S)
        except (EngineError, TimeoutError) as exc:
            words = str(exc) or f"the engine does not say within {_EXPLAIN_S:g} s"
            return Failure(Reason.CONTAINER_DIED, f"the container's end can't be looked up: {words}")
        if death is None:
            return Failure(Reason.CONTAINER_DIED, f"{end}, and its container goes on")
        if death.out_of_memory:
            memory = rules.memory.human_readable()
            return Failure(Reason.OUT_OF_MEMORY, f"the container used more than its {memory} of memory")
        if death.outside == "removed":
            return Failure(Reason.CONTAINER_DIED, "the container was removed from outside")
        message = f"the container ended with exit code {death.exit_code}{_signal(death.exit_code)}"
        if death.outside == "killed":
            message += ", killed from outside through the engine"
        return Failure(Reason.CONTAINER_DIED, message + _quote(death.log))


def _channel(host: SandboxHost, name: str, sandbox_id: str, kind: Kind, port: int) -> Channel:
    directory = host.state.sandbox_dir(sandbox_id)
    if kind is Kind.SERVER:
        return ServerChannel(
            directory,
            enter=lambda: _enter(host, name),
            port=port,
            note=host.state.server_note(sandbox_id),
            max_frame_bytes=host.settings.max_frame,
            intake=host.intake,
        )
    remapped = host.engine.remapped_root
    return RuntimeChannel(
        directory,
        token=host.state.token(sandbox_id),
        runtime_uid=remapped[0] if remapped else 0,
        max_frame_bytes=host.settings.max_frame,
        intake=host.intake,
    )


async def _enter(host: SandboxHost, name: str) -> Namespace:
    """Take hold of a running container's network.

    Raises:
        ChannelBroken: it doesn't run.
        NoEntry: it can't be had from here.
    """
    try:
        if (process := await host.engine.init_process(name)) is None:
            raise ChannelBroken("the container died")
        container_id, pid = process
        namespace = await host.namespaces.enter(pid, container_id)
        if await host.engine.init_process(name) == process:  # so it was its process when its network was opened
            return namespace
        namespace.close()
        raise ChannelBroken("the container died")
    except EngineError as exc:
        raise NoEntry(f"the engine doesn't say which process it is ({exc})") from exc


def _mounts(host: SandboxHost, image: Image, directory: Path) -> dict[str, Path]:
    mounts = {DATA_DIR: host.data[image.tag]} if image.tag in host.data else {}
    if host.egress is not None and host.rules(image.tag).egress is not None:
        mounts[EGRESS_DIR] = directory / OUTLET_NAME
    return mounts


def _signal(exit_code: int) -> str:
    """Name the signal behind an exit code over 128, as shells and container engines encode it."""
    try:
        return f" ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return ""


def _quote(output: str) -> str:
    return f"; the end of its output:\n{output[-_MAX_LOG_CHARS:]}" if output else ""
