"""Calling an author's functions, which may be sync or async, without stalling the event loop.

1. A coroutine function runs on the loop; anything else runs in a thread, and if it returns an awaitable, that is awaited.
2. Threads see the caller's context variables, so code deep inside a tool still knows which call it belongs to.
3. A thread cannot be interrupted. Cancelling the wait runs ``on_cancel`` (which ends what the thread waits for), and the
   cancellation goes on only when the thread has ended: nothing is left running behind the caller's back.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import inspect
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")


async def call(fn: Callable[..., Any], *args: Any, on_cancel: Callable[[], None] | None = None) -> Any:
    """Return what ``fn(*args)`` returns, awaited if it is awaitable; see the module's rules.

    Raises:
        BaseException: whatever ``fn`` raises.
    """
    if inspect.iscoroutinefunction(fn):
        return await fn(*args)
    value = await run_in_thread(fn, *args, on_cancel=on_cancel)
    return await value if inspect.isawaitable(value) else value


async def run_in_thread(fn: Callable[..., T], *args: Any, on_cancel: Callable[[], None] | None = None) -> T:
    """Return ``fn(*args)``, run in a thread of its own.

    Raises:
        RuntimeError: the container's process limit leaves no room for a thread (``fn`` was not run).
        asyncio.CancelledError: this task was cancelled; ``fn`` has ended all the same.
        BaseException: whatever ``fn`` raises.
    """
    run = _Run(fn, args)
    _give(run)
    cancelled: asyncio.CancelledError | None = None
    while run.outcome is None:
        try:
            await run.wait()
        except asyncio.CancelledError as exc:
            cancelled = exc
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        raise cancelled
    kind, value = run.outcome
    if kind == "raised":
        raise value
    return value  # type: ignore[no-any-return]


class _Run:
    """One function, run by a thread; its outcome is there once the loop was told.

    A future of asyncio's would not do: it ends when the task that awaits it is cancelled, refuses to carry StopIteration, and
    treats CancelledError as its own.
    """

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self.outcome: tuple[str, Any] | None = None
        self._fn = fn
        self._args = args
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self._waiter: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait for the outcome; a cancelled wait may be followed by another."""
        self._waiter = self._loop.create_future()
        await self._waiter

    def run(self, then: Callable[[], None]) -> None:
        """Run it, in the thread; ``then`` is called when the thread has nothing left to do but tell the loop."""
        outcome: tuple[str, Any]
        try:
            outcome = "returned", self._context.run(self._fn, *self._args)
        except BaseException as exc:
            outcome = "raised", exc
        then()
        with contextlib.suppress(RuntimeError):  # a loop that was closed meanwhile: nobody waits
            self._loop.call_soon_threadsafe(self._ended, outcome)

    def _ended(self, outcome: tuple[str, Any]) -> None:
        self.outcome = outcome
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Thread:
    """A thread that does one run after another. It is kept: what the process limit has left once may not be there again."""

    def __init__(self) -> None:
        self._runs: SimpleQueue[_Run] = SimpleQueue()
        threading.Thread(target=self._work, name="call", daemon=True).start()

    def give(self, run: _Run) -> None:
        """Have it do this next."""
        self._runs.put(run)

    def _work(self) -> None:
        while True:
            self._runs.get().run(self._rest)

    def _rest(self) -> None:
        _resting.append(self)


_resting: list[_Thread] = []
"""The threads with nothing to do; the last one to come is the first to go, as its memory is still at hand."""


def _give(run: _Run) -> None:
    try:
        thread = _resting.pop()
    except IndexError:
        try:
            thread = _Thread()
        except RuntimeError as exc:
            raise RuntimeError(f"no thread could be started for the call: {exc}") from exc
    thread.give(run)
