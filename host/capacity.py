"""Permission to have one more session: a hard limit, and a bounded queue in front of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from host.errors import CapacityExceeded


class Capacity:
    """``limit`` places. A place is taken before a container is created and given back after it is removed."""

    def __init__(self, limit: int, *, queue_size: int, queue_timeout_s: float) -> None:
        self.limit = limit
        self._queue_size = queue_size
        self._queue_timeout_s = queue_timeout_s
        self._places = anyio.Semaphore(limit)

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self._places.value

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return self._places.statistics().tasks_waiting

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Hold a place for the length of the block, first come first served.

        Raises:
            CapacityExceeded: the queue is full, or no place became free in time.
        """
        if self.free == 0 and self.waiting >= self._queue_size:
            raise CapacityExceeded(
                f"all {self.limit} sessions are in use and {self.waiting} wait for one; try again later"
            )
        acquired = False
        with anyio.move_on_after(self._queue_timeout_s):
            await self._places.acquire()
            acquired = True
        if not acquired:
            raise CapacityExceeded(
                f"all {self.limit} sessions are in use, and none became free within {self._queue_timeout_s:g} s"
            )
        try:
            yield
        finally:
            self._places.release()
