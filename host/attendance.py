"""How old a session is, and how long nobody has asked it anything: what ends one that nobody ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import anyio

from host.errors import Failure
from host.lifecycle import Clock, expiry

_TOUCH_S = 5.0
"""How exactly the next host is told of the idle time, to save a file system call for each request."""


class Attendance:
    """When a session was made, and when it was last in use. Times in seconds.

    Args:
        clock: one that only goes forward.
        age_s: how old the session is already.
        idle_s: how long it has been idle.
        on_use: told that it is in use, though not of each time.
    """

    def __init__(
        self, clock: Callable[[], float], *, age_s: float = 0.0, idle_s: float = 0.0, on_use: Callable[[], None]
    ) -> None:
        self._clock = clock
        self._on_use = on_use
        self._created_at, self._used_at = clock() - age_s, clock() - idle_s
        self._requests_in_flight = 0

    @property
    def age_s(self) -> float:
        """How long ago the session was made."""
        return self._clock() - self._created_at

    @contextmanager
    def request(self) -> Iterator[None]:
        """Count as a request for the length of the block: the session is not idle."""
        self._requests_in_flight += 1
        try:
            yield
        finally:
            self._requests_in_flight -= 1
            self.used()

    def used(self) -> None:
        """Take note that it was in use until now."""
        now = self._clock()
        if now - self._used_at >= _TOUCH_S:
            self._on_use()
        self._used_at = now

    async def wait_over(self, calls: Callable[[], int], *, idle_timeout_s: float, max_age_s: float) -> Failure:
        """Wait until the session is too old, or idle for too long; return which. ``calls``: how many are in flight."""
        while True:
            clock = Clock(self._created_at, self._used_at, self._requests_in_flight + calls())
            verdict = expiry(clock, now := self._clock(), idle_timeout_s=idle_timeout_s, max_age_s=max_age_s)
            if isinstance(verdict, Failure):
                return verdict
            await anyio.sleep(verdict - now)
