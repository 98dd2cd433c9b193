"""Permission to have one more session: a hard limit, and a bounded queue in front of it.

asyncio's own semaphores don't say whether a waiter that is being cancelled was given its place; here a place that was handed to
somebody who no longer wants it goes to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import structlog

from host.errors import CapacityExceeded

log = structlog.get_logger()

_TELL_S = 10.0


class Capacity:
    """``limit`` places. A place is taken before a container is created and given back after it is removed.

    ``leftovers`` says how many containers there are beside those that hold a place; ``recount`` is to be called when they
    become fewer.
    """

    def __init__(
        self, limit: int, *, queue_size: int, queue_timeout_s: float, leftovers: Callable[[], int] = lambda: 0
    ) -> None:
        self.limit = limit
        self._leftovers = leftovers
        self._queue_size = queue_size
        self._queue_timeout_s = queue_timeout_s
        self._taken = 0
        self._refused = 0
        self._tell_again_at = 0.0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def free(self) -> int:
        """Places that nobody has; negative if more sessions were found alive at the start than may be."""
        return self.limit - self._taken - self._leftovers()

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._queue)

    @contextmanager
    def occupied(self) -> Iterator[None]:
        """Hold a place for the length of the block, whether or not there is one."""
        self._taken += 1
        try:
            yield
        finally:
            self._give_back()

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for the length of the block, first come first served.

        Raises:
            CapacityExceeded: the queue is full, or no place became free in time.
        """
        if self.free > 0 and not self._queue:
            self._taken += 1
        else:
            await self._wait_in_queue()
        try:
            yield
        finally:
            self._give_back()

    async def _wait_in_queue(self) -> None:
        if self.waiting >= self._queue_size:
            raise self._refusal(
                f"all {self.limit} sessions are in use and {self.waiting} wait for one; try again later"
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await asyncio.wait((turn,), timeout=self._queue_timeout_s)
        except asyncio.CancelledError:
            if turn.done():
                self._give_back()
            raise
        finally:
            if not turn.done():
                self._queue.remove(turn)
        if not turn.done():
            raise self._refusal(
                f"all {self.limit} sessions are in use, and none became free within {self._queue_timeout_s:g} s"
            )

    def _refusal(self, words: str) -> CapacityExceeded:
        """Return the error; the log is told of it, but not of each: a trainer that is refused asks again, many times over."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now >= self._tell_again_at:
            log.warning("sessions_refused", since_last_told=self._refused, limit=self.limit, waiting=self.waiting)
            self._refused, self._tell_again_at = 0, now + _TELL_S
        return CapacityExceeded(words)

    def recount(self) -> None:
        """Give places to those who wait, if there are any."""
        while self._queue and self.free > 0:
            self._taken += 1
            self._queue.popleft().set_result(None)

    def _give_back(self) -> None:
        self._taken -= 1
        self.recount()
