"""Where sessions' sandboxes come from: one that was started beforehand and waits, else one that is started now.

1. A sandbox that waits is nobody's: its runtime has loaded the environment and was asked nothing. It is handed over once, in
   one step, and never comes back.
2. It holds a place like a session's, so that there are never more containers than there may be sessions. Nobody queues for
   such a place: who wants this image has the sandbox, be it still starting; for all others it is removed.
3. New ones are started a few at a time, and only while nobody queues.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog
from anyio.abc import TaskGroup

from host import tracing
from host.capacity import Capacity
from host.demand import Demand
from host.engine import EngineError, Image, Role
from host.errors import HostError
from host.memory import memory_is_short
from host.sandbox import Sandbox
from host.sandbox_host import SandboxHost

log = structlog.get_logger()

_STARTING = 2
"""Started beforehand at the same time: the engine and the processors are for those who wait, first of all."""

_LOOK_S = 1.0
"""How often it is looked at what nothing announces: less demand, less memory, an image built anew."""

_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 60.0
"""Between attempts to start an image that fails."""


@dataclass(eq=False)
class _Member:
    """One sandbox that is started beforehand. ``over``: it has been taken or given up, and can't be taken any more."""

    image: Image
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    life: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    settled: anyio.Event = field(default_factory=anyio.Event)  # it is ready, or never will be
    sandbox: Sandbox | None = None
    claimed: bool = False
    over: bool = False
    dismissed: bool = False

    @property
    def unclaimed(self) -> bool:
        return not (self.claimed or self.over or (self.sandbox is not None and self.sandbox.failed))

    def take(self) -> AsyncExitStack | None:
        """Return what owns the sandbox and its place, for whoever takes it over; None if it is of no use."""
        if self.sandbox is None or self.over or self.sandbox.failed:
            return None
        self.over = True
        self.life.cancel()
        return self.stack.pop_all()

    def dismiss(self) -> None:
        """Have it removed."""
        self.over = self.dismissed = True
        self.life.cancel()


class _Pause:
    """When an image may be tried again that failed to start."""

    def __init__(self) -> None:
        self.until = 0.0
        self._length_s = 0.0

    def failed(self, now: float) -> float:
        """Pause, longer each time, but once for all that fail together; return for how long."""
        if now >= self.until:
            self._length_s = min(max(_FIRST_PAUSE_S, 2 * self._length_s), _LONGEST_PAUSE_S)
            self.until = now + self._length_s
        return self._length_s

    def worked(self) -> None:
        self._length_s = 0.0


class Pool:
    """The sandboxes of sessions. ``images`` returns those that sessions are made from now; older ones are drained."""

    def __init__(
        self,
        host: SandboxHost,
        capacity: Capacity,
        images: Callable[[], Iterable[Image]],
        *,
        clock: Callable[[], float],
        memory_is_short: Callable[[], bool] = memory_is_short,
    ) -> None:
        self.capacity = capacity
        self._host = host
        self._images = images
        self._clock = clock
        self._memory_is_short = memory_is_short
        self._members: list[_Member] = []
        self._demand: defaultdict[Image, Demand] = defaultdict(Demand)
        self._pauses: defaultdict[Image, _Pause] = defaultdict(_Pause)
        self._changed = anyio.Event()
        self._life = anyio.CancelScope()
        self._closed = anyio.Event()

    @property
    def waiting(self) -> int:
        """How many sandboxes are ready and wait."""
        return sum(self.waiting_by_image().values())

    def waiting_by_image(self) -> dict[str, int]:
        """Return how many sandboxes are ready and wait, by the tag of their image."""
        counts = {image.tag: 0 for image in self._images()}
        for member in self._members:
            if member.unclaimed and member.sandbox is not None:
                counts[member.image.tag] = counts.get(member.image.tag, 0) + 1
        return counts

    @property
    def room(self) -> int:
        """How many sessions could be created now without a wait for another's end; negative as ``Capacity.free``."""
        return self.capacity.free + sum(member.unclaimed for member in self._members)

    @asynccontextmanager
    async def sandbox(self, image: Image) -> AsyncIterator[Sandbox]:
        """Own a sandbox of this image for the length of the block.

        Raises:
            CapacityExceeded: there is no place for one, and none became free in time.
            SandboxFailed: it could not be started.
        """
        self._demand[image].note(self._clock())
        async with AsyncExitStack() as stack:
            with tracing.span("pool.take"):
                sandbox = await self._take(image, stack)
            if sandbox is None:
                self._changed.set()  # those that wait may have to make room
                with tracing.span("queue"):
                    await stack.enter_async_context(self.capacity.place())
                sandbox = await stack.enter_async_context(Sandbox.open(self._host, image, role=Role.SESSION))
            yield sandbox

    async def run(self) -> None:
        """Keep sandboxes waiting until cancelled; none waits any more then."""
        try:
            if any(self._host.rules(tag).warm for tag in self._host.settings.image):
                with self._life:
                    async with anyio.create_task_group() as tasks:
                        await self._keep_filled(tasks)
        finally:
            self._closed.set()

    def close(self) -> None:
        """Let nothing wait any more, and start nothing beforehand; whoever waits for what is starting starts their own."""
        self._life.cancel()

    async def wait_closed(self) -> None:
        """Wait until nothing is left of what waited."""
        await self._closed.wait()

    async def _keep_filled(self, tasks: TaskGroup) -> None:
        while True:
            changed = self._changed = anyio.Event()
            wanted = self._wanted()
            self._make_room()
            self._drain(wanted)
            self._start(wanted, tasks)
            with anyio.move_on_after(_LOOK_S):
                await changed.wait()

    async def _take(self, image: Image, stack: AsyncExitStack) -> Sandbox | None:
        """Hand over a sandbox that waits or is being started, if there is one, into ``stack``."""
        while (member := self._best(image)) is not None:
            member.claimed = True
            try:
                await member.settled.wait()
                if (taken := member.take()) is not None:
                    await stack.enter_async_context(taken)
                    assert member.sandbox is not None
                    member.sandbox.waited = True
                    return member.sandbox
            finally:
                member.claimed = False
                self._changed.set()
        return None

    def _best(self, image: Image) -> _Member | None:
        mine = [member for member in self._members if member.image == image and member.unclaimed]
        return min(mine, key=lambda member: member.sandbox is None, default=None)  # the oldest that is ready

    def _wanted(self) -> dict[Image, int]:
        """Return how many are to wait of each image."""
        images = tuple(self._images())
        for known in (self._demand, self._pauses):
            for old in known.keys() - {*images, *(member.image for member in self._members)}:
                del known[old]
        if self._memory_is_short():
            return dict.fromkeys(images, 0)
        return {image: self._wanted_of(image) for image in images}

    def _wanted_of(self, image: Image) -> int:
        rules = self._host.rules(image.tag)
        if not rules.warm:
            return 0
        return min(max(rules.warm, math.ceil(self._demand[image].level(self._clock()))), rules.warm_max)

    def _make_room(self) -> None:
        """Remove what is in the way of those who queue."""
        in_the_way = self.capacity.waiting - sum(member.dismissed for member in self._members)
        for member in tuple(self._members):
            if in_the_way > 0 and member.unclaimed:
                member.dismiss()
                in_the_way -= 1

    def _drain(self, wanted: Mapping[Image, int]) -> None:
        """Remove what is too many, and what was made from older images."""
        left = dict(wanted)
        for member in self._members:
            if member.unclaimed:
                left[member.image] = left.get(member.image, 0) - 1
                if left[member.image] < 0:
                    member.dismiss()

    def _start(self, wanted: Mapping[Image, int], tasks: TaskGroup) -> None:
        """Start what is missing, as far as there is room."""
        missing: list[tuple[int, Image]] = []
        for image, count in wanted.items():
            there = sum(member.image == image and member.unclaimed for member in self._members)
            if self._clock() >= self._pauses[image].until:
                missing += [(nth, image) for nth in range(there, count)]
        starting = sum(not member.settled.is_set() for member in self._members)
        for _, image in sorted(missing, key=lambda item: item[0]):  # each image its first, then each its second
            if starting >= _STARTING or self.capacity.waiting or self.capacity.free <= 0:
                return
            member = _Member(image)
            member.stack.enter_context(self.capacity.occupied())
            self._members.append(member)
            tasks.start_soon(self._live, member)
            starting += 1

    async def _live(self, member: _Member) -> None:
        """A member's life until it is taken over, dies, or is dismissed."""
        try:
            async with member.stack:
                with member.life:
                    await self._wait_in_vain(member)
        finally:
            member.over = True
            self._members.remove(member)
            member.settled.set()
            self._changed.set()

    async def _wait_in_vain(self, member: _Member) -> None:
        """Start it, and return when it has failed, now or later; a member that is wanted is cancelled."""
        pause = self._pauses[member.image]
        try:
            sandbox = await member.stack.enter_async_context(Sandbox.open(self._host, member.image, role=Role.SESSION))
        except (HostError, EngineError) as exc:
            again_in_s = pause.failed(self._clock())
            self._host.metrics.warm_container_lost(member.image.tag)
            log.warning("warm_container_not_started", image=member.image.tag, error=str(exc), again_in_s=again_in_s)
            return
        pause.worked()
        member.sandbox = sandbox
        member.settled.set()
        self._changed.set()
        failure = await sandbox.wait_failed()
        again_in_s = pause.failed(self._clock())
        self._host.metrics.warm_container_lost(member.image.tag)
        log.warning("warm_container_died", container=sandbox.name, reason=failure.reason, again_in_s=again_in_s)
