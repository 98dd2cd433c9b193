"""Tool calls: each runs at most once, and its outcome waits for a client that lost its connection.

A call's id is the ``task_id`` of the wire. Ids that the host makes have a form of their own, so that an id of ours which is not
(or no longer) known is told from one that a client made up to trace a new call by.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from host.errors import TooManyCalls

_OWN_PREFIX = "call_"
_MAX_REMEMBERED_IDS = 10_000
"""Ids kept for a session's life after their results are gone; an episode has tens of calls, rarely hundreds."""


class UnknownCall(Exception):
    """The id is of a call whose result is gone, or that never was."""


@dataclass(frozen=True)
class Outcome:
    """How a call ended: the text of its ``end`` event (JSON) or of its ``error`` event (words).

    ``cut`` is no end: this host lets go of a call that goes on in its container. Streams break off, so that their clients
    reconnect, and find the next host.
    """

    event: Literal["end", "error", "cut"]
    text: str = ""


class ToolCall:
    """One call; ``outcome`` is there once it has ended."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.outcome: Outcome | None = None
        self._waiters: set[asyncio.Future[None]] = set()

    async def wait(self, timeout_s: float) -> Outcome | None:
        """Wait until the call has ended, but no longer than that; return its outcome if it has one."""
        if self.outcome is None:
            loop = asyncio.get_running_loop()
            waiter = loop.create_future()
            self._waiters.add(waiter)
            timer = loop.call_later(timeout_s, _wake, waiter)
            try:
                await waiter
            finally:
                timer.cancel()
                self._waiters.discard(waiter)
        return self.outcome

    def finish(self, outcome: Outcome) -> None:
        """Give the call its outcome; the first one holds."""
        if self.outcome is None:
            self.outcome = outcome
            for waiter in self._waiters:
                _wake(waiter)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class KeptResults:
    """The memory for results that are kept for clients that reconnect, one for all sessions; the oldest go first."""

    def __init__(self, max_bytes: int) -> None:
        self.held_bytes = 0
        self._max_bytes = max_bytes
        self._entries: OrderedDict[ToolCall, tuple[int, Callable[[ToolCall], None]]] = OrderedDict()

    def add(self, call: ToolCall, size: int, forget: Callable[[ToolCall], None]) -> None:
        """Take a call's result in; ``forget`` is told when there is no room for it any more, which may be now."""
        self._entries[call] = (size, forget)
        self.held_bytes += size
        while self.held_bytes > self._max_bytes:
            oldest, (_size, forget) = next(iter(self._entries.items()))
            self.drop(oldest)
            forget(oldest)

    def drop(self, call: ToolCall) -> None:
        """Give a result's room back."""
        if entry := self._entries.pop(call, None):
            self.held_bytes -= entry[0]


class Calls:
    """All calls of one session."""

    def __init__(self, *, max_in_flight: int, linger_s: float, results: KeptResults) -> None:
        self.started = 0
        self.in_flight = 0
        self._max_in_flight = max_in_flight
        self._linger_s = linger_s
        self._results = results
        self._known: dict[str, ToolCall] = {}  # in flight, or with a result
        self._kept: OrderedDict[ToolCall, float] = OrderedDict()  # until when, in the event loop's time: the next first
        self._timer: asyncio.TimerHandle | None = None  # one: a busy host keeps tens of thousands of results
        self._forgotten: OrderedDict[str, None] = OrderedDict()

    def find(self, call_id: str) -> ToolCall | None:
        """Return the call of that id, or None if the id is a client's own that was never used.

        Raises:
            UnknownCall: there was such a call and its result is gone, or the id is one that only the host makes.
        """
        if call := self._known.get(call_id):
            return call
        if call_id in self._forgotten or call_id.startswith(_OWN_PREFIX):
            raise UnknownCall(call_id)
        return None

    def start(self, call_id: str | None) -> ToolCall:
        """Register a new call under its own id, or one that the host makes.

        Raises:
            TooManyCalls: as many are in flight as may be.
        """
        if self.in_flight >= self._max_in_flight:
            raise TooManyCalls(f"{self.in_flight} calls are in flight in this session, and no more may be")
        return self.adopt(call_id or _OWN_PREFIX + secrets.token_hex(16))

    def adopt(self, call_id: str) -> ToolCall:
        """Register a call that was started before, by an earlier host."""
        call = self._known[call_id] = ToolCall(call_id)
        self.started += 1
        self.in_flight += 1
        return call

    def remember(self, call_id: str) -> None:
        """Take note of a call whose result is gone."""
        self._forgotten[call_id] = None
        if len(self._forgotten) > _MAX_REMEMBERED_IDS:
            self._forgotten.popitem(last=False)

    def finish(self, call: ToolCall, outcome: Outcome) -> None:
        """End a call, and keep its outcome for a while."""
        call.finish(outcome)
        self.in_flight -= 1
        loop = asyncio.get_running_loop()
        self._kept[call] = loop.time() + self._linger_s
        if self._timer is None:
            self._timer = loop.call_later(self._linger_s, self._forget_due)
        self._results.add(call, len(outcome.text), self._forget)

    def close(self, outcome: Outcome) -> None:
        """End whatever is in flight, and forget everything."""
        for call in self._known.values():
            call.finish(outcome)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for call in self._kept:
            self._results.drop(call)
        self._known.clear()
        self._kept.clear()

    def _forget_due(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._kept:
            call, until = next(iter(self._kept.items()))
            if until > loop.time():
                self._timer = loop.call_at(until, self._forget_due)
                return
            self._forget(call)

    def _forget(self, call: ToolCall) -> None:
        if self._kept.pop(call, None) is None:
            return
        self._results.drop(call)
        del self._known[call.id]
        self.remember(call.id)
