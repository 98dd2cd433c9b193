"""Requests that are open on one channel, each matched to its answer by its id. No I/O.

What a runtime owes stays on the list until it has answered, also when nobody waits any more: only so can an answer that was
asked for be told from one that was not.
"""

from __future__ import annotations

import asyncio
from typing import Any

from sandbox_runtime.messages import Method


class OpenRequests:
    """The requests of one channel."""

    def __init__(self) -> None:
        self.methods: dict[int, Method] = {}
        """What was asked, by id."""
        self._answers: dict[int, asyncio.Future[Any] | None] = {}  # None: nobody waits any more
        self._last_id = 0

    def __contains__(self, request_id: int) -> bool:
        return request_id in self.methods

    def new_id(self) -> int:
        """Return an id for a request that is to be opened."""
        self._last_id += 1
        return self._last_id

    def open(self, request_id: int, method: Method) -> None:
        """Take note of a request that was sent."""
        self.methods[request_id] = method
        self._answers[request_id] = None

    async def wait(self, request_id: int, timeout_s: float) -> Any:
        """Wait for the answer to an open request; whether it came or not, it is waited for no longer.

        Raises:
            TimeoutError: it did not come.
            Exception: what it was given to ``fail``, or ``end``.
        """
        loop = asyncio.get_running_loop()
        answer = self._answers[request_id] = loop.create_future()
        timer = loop.call_later(timeout_s, _time_out, answer)
        try:
            return await answer
        finally:
            timer.cancel()
            if request_id in self._answers:
                self._answers[request_id] = None

    def answer(self, request_id: int, value: Any) -> None:
        """Close a request; whoever waits gets ``value``."""
        if (answer := self._close(request_id)) is not None:
            answer.set_result(value)

    def fail(self, request_id: int, error: Exception) -> None:
        """Close a request; whoever waits gets ``error`` raised."""
        if (answer := self._close(request_id)) is not None:
            answer.set_exception(error)

    def end(self, error: Exception) -> None:
        """Close all; whoever waits gets ``error``, each a copy."""
        for request_id in tuple(self.methods):
            self.fail(request_id, copy_of(error))

    def _close(self, request_id: int) -> asyncio.Future[Any] | None:
        del self.methods[request_id]
        answer = self._answers.pop(request_id)
        return None if answer is None or answer.done() else answer


def copy_of(error: Exception) -> Exception:
    """Return the same words to raise: an exception that is raised again and again gathers every frame, and what it holds."""
    return type(error)(*error.args)


def _time_out(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())
