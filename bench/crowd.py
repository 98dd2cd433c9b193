"""Many sessions on one host: opened in parallel, kept alive, asked now and then."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.episodes import Server, Session
from bench.wire import Connection, RequestFailed

_AT_ONCE = 8
PING_EVERY_S = 10.0
CALL_EVERY_S = 1.0
"""On the average, at random: what a model takes to think is far more."""

COMMANDS, LARGE = 0.08, 0.02
"""The shares of calls that run a command as the agent, and of those with a result of 1 MB; the others are small."""


@dataclass
class Calls:
    """Calls that were made, by kind, each with its time in seconds."""

    small: list[float] = field(default_factory=list)
    command: list[float] = field(default_factory=list)
    large: list[float] = field(default_factory=list)
    failed: int = 0

    @property
    def n(self) -> int:
        """How many succeeded."""
        return len(self.small) + len(self.command) + len(self.large)


class Crowd:
    """The sessions. All are deleted when the block of ``gathering`` is left."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.sessions: list[Session] = []

    @classmethod
    @asynccontextmanager
    async def gathering(cls, server: Server) -> AsyncIterator[Crowd]:
        """Begin with no session."""
        crowd = cls(server)
        try:
            yield crowd
        finally:
            await crowd.shrink(0)

    async def grow(self, size: int) -> float:
        """Open sessions until there are ``size``; return how many seconds that took.

        Raises:
            RequestFailed: one was refused; those that were opened stay.
        """
        begin = time.perf_counter()
        missing = iter(range(len(self.sessions), size))

        async def some() -> None:
            for _ in missing:
                session = Session(self._server, await Connection.connect(self._server.port))
                await session.start()
                self.sessions.append(session)

        outcomes = await asyncio.gather(*(some() for _ in range(_AT_ONCE)), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return time.perf_counter() - begin

    async def shrink(self, size: int) -> None:
        """Delete sessions until there are ``size``."""

        async def some() -> None:
            while len(self.sessions) > size:
                session = self.sessions.pop()
                await session.delete()
                session.connection.close()

        await asyncio.gather(*(some() for _ in range(_AT_ONCE)), return_exceptions=True)

    async def keep_alive(self, duration_s: float) -> int:
        """Let every session ping as clients do, spread over time; return how many pings there were."""
        pings = 0

        async def one(first_s: float, session: Session) -> None:
            nonlocal pings
            at = first_s
            while at < duration_s:
                await asyncio.sleep(max(0.0, begin + at - time.perf_counter()))
                await session.ping()
                pings += 1
                at += PING_EVERY_S
            await asyncio.sleep(max(0.0, begin + duration_s - time.perf_counter()))

        begin = time.perf_counter()
        async with asyncio.TaskGroup() as tasks:
            for index, session in enumerate(self.sessions):
                tasks.create_task(one(PING_EVERY_S * index / len(self.sessions), session))
        return pings

    async def mixed_calls(self, duration_s: float) -> Calls:
        """Let every session call tools, one at a time, at random times and of all kinds."""
        calls = Calls()
        end = time.perf_counter() + duration_s

        async def one(seed: int, session: Session) -> None:
            chance = random.Random(seed)
            while True:
                await asyncio.sleep(chance.expovariate(1 / CALL_EVERY_S))
                if (begin := time.perf_counter()) >= end:
                    return
                drawn = chance.random()
                if drawn < LARGE:
                    request, times = session.large_call, calls.large
                elif drawn < LARGE + COMMANDS:
                    request, times = session.command_call, calls.command
                else:
                    request, times = session.small_call, calls.small
                try:
                    await session.call(request)
                    times.append(time.perf_counter() - begin)
                except RequestFailed:
                    calls.failed += 1

        async with asyncio.TaskGroup() as tasks:
            for seed, session in enumerate(self.sessions):
                tasks.create_task(one(seed, session))
        return calls
