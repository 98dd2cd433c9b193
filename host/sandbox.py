"""One container and the channel to its runtime: opened together, used for one thing, removed together.

A sandbox is never given back or used again. ``Sandbox.open`` holds no cancel scope or task group at its ``yield``, so that the
task that opens one need not be the one that closes it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

import anyio

from host import tracing
from host.autopsy import explain_death, quote
from host.channel import Channel, ChannelBroken, ChannelClosed, Greeting, ProtocolViolation
from host.engine import LABEL_IMAGE, LABEL_SANDBOX, ContainerRef, ContainerSpec, CreateUnclear, EngineError, Image, Role
from host.errors import Failure, InvalidRequest, Reason, SandboxFailed
from host.kinds import LABEL_KIND, Kind, kind_of, port_of
from host.rules import Rules
from host.sandbox_channel import channel_of
from host.sandbox_host import SandboxHost
from host.sandbox_spec import container_spec
from host.state import Assignment
from sandbox_runtime.frames import FrameTooLarge
from sandbox_runtime.messages import EpisodeState, Method

_LOOKUP_S = 3.0
"""For what the engine can tell of a container, when that only adds words to a failure."""

_ADOPT_TIMEOUT_S = 10.0
"""A runtime dials about once a second; one that doesn't in this time is stuck."""


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
        name = host.container_name(sandbox_id)
        rules = host.rules(image.tag)
        kind = kind_of(image.labels, rules.kind)
        port = port_of(image.labels, rules.server_port) if kind is Kind.SERVER else None
        channel = channel_of(host, name, sandbox_id, port)
        spec = container_spec(host, image, name, sandbox_id, role=role, port=port)
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
        port = port_of(container.labels) if kind is Kind.SERVER else None
        channel = channel_of(host, container.name, sandbox_id, port)
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
            try:
                await channel.aclose()
            finally:
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
                output = quote(await host.engine.log_tail(spec.name))
            message = f"image {spec.image.tag!r}: {channel.silence} within {timeout_s:g} s{output}"
            raise SandboxFailed(Failure(Reason.START_TIMEOUT, message)) from None
        except CreateUnclear:
            host.doubt(spec.name)
            raise
        except ProtocolViolation as exc:
            raise SandboxFailed(Failure(Reason.PROTOCOL_VIOLATION, str(exc))) from exc
        except ChannelBroken as exc:
            failure = await explain_death(host, spec.name, rules, exc)
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
        return await explain_death(self._host, self.name, self.rules, end)

    @property
    def failed(self) -> bool:
        """True once nothing more can be asked of it."""
        return self._channel.ended
