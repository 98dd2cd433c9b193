"""Work that is seen through although whoever began it was cancelled, but not for ever: until the host has no more time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class Patience:
    """The shielded efforts of one host, which can all be cut short when it must end."""

    def __init__(self) -> None:
        self._efforts: dict[anyio.CancelScope, bool] = {}  # → whether it is vital
        self._end: float | None = None

    @contextmanager
    def effort(self, timeout_s: float, *, vital: bool) -> Iterator[anyio.CancelScope]:
        """Shield the block from cancellation for at most ``timeout_s``; the scope tells whether it was cut off.

        What is not vital is cut off at once when patience ends, what is vital has the time that ``end`` leaves.
        """
        with anyio.CancelScope(shield=True, deadline=anyio.current_time() + timeout_s) as scope:
            self._efforts[scope] = vital
            self._shorten(scope)
            try:
                yield scope
            finally:
                del self._efforts[scope]

    def end(self, in_s: float) -> None:
        """Cut short what is under way, and all that comes: vital efforts end in ``in_s`` seconds, others now."""
        end = anyio.current_time() + in_s
        self._end = end if self._end is None else min(end, self._end)
        for scope in tuple(self._efforts):
            self._shorten(scope)

    def _shorten(self, scope: anyio.CancelScope) -> None:
        if self._end is None:
            return
        if self._efforts[scope]:
            scope.deadline = min(scope.deadline, self._end)
        else:
            scope.cancel()
