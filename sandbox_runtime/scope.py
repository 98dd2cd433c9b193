"""Which tool call a command belongs to, so that cancelling the call ends what it started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

current_scope: ContextVar[CallScope | None] = ContextVar("current_scope", default=None)
"""The scope of the call that this code runs for; threads started by ``calling`` and asyncio tasks inherit it."""


class CallScope:
    """What one request has started. May be used from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._enders: set[Callable[[], None]] = set()
        self._cancelled = False

    @property
    def cancelled(self) -> bool:
        """True from the first ``cancel`` on."""
        return self._cancelled

    def cancel(self) -> None:
        """End everything started in this scope, now and from now on."""
        with self._lock:
            self._cancelled = True
            enders = list(self._enders)
        for end in enders:
            end()

    @contextmanager
    def started(self, end: Callable[[], None]) -> Iterator[None]:
        """Have ``end`` called if the scope is cancelled within the block.

        Raises:
            asyncio.CancelledError: it is cancelled already.
        """
        with self._lock:
            if self._cancelled:
                raise asyncio.CancelledError("the call was cancelled")
            self._enders.add(end)
        try:
            yield
        finally:
            with self._lock:
                self._enders.discard(end)
