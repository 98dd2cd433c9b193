"""Which tool calls of an episode may run together.

Calls of one tool run one at a time, in the order they came, unless it is ``concurrent``; different tools overlap. An
``exclusive`` call waits for all calls in flight and holds back new ones, so nothing changes what it grades; new calls wait
behind a waiting exclusive one, else a stream of them would keep it out for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from .tools import ToolOptions


class Gate:
    """One episode's gate. Its state changes only between awaits, so a cancelled waiter leaves nothing to repair."""

    def __init__(self) -> None:
        self._running = 0
        self._exclusive_running = False
        self._exclusive_waiting = 0
        self._waiters: set[asyncio.Future[None]] = set()
        self._tool_locks: dict[str, asyncio.Lock] = {}

    @asynccontextmanager
    async def entered(self, tool: str, options: ToolOptions) -> AsyncIterator[None]:
        """Hold the right to run a call of ``tool`` within the block."""
        if options.exclusive:
            async with self._alone():
                yield
        elif options.concurrent:
            async with self._together():
                yield
        else:
            # The tool's lock first: calls that only wait for it must not hold off an exclusive one.
            async with self._tool_locks.setdefault(tool, asyncio.Lock()), self._together():
                yield

    @asynccontextmanager
    async def _together(self) -> AsyncIterator[None]:
        await self._wait_until(lambda: not self._exclusive_running and not self._exclusive_waiting)
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1
            self._wake_all()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        self._exclusive_waiting += 1
        try:
            await self._wait_until(lambda: not self._exclusive_running and not self._running)
            self._exclusive_running = True
        finally:
            self._exclusive_waiting -= 1
            self._wake_all()
        try:
            yield
        finally:
            self._exclusive_running = False
            self._wake_all()

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)

    def _wake_all(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
