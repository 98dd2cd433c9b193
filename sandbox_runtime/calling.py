"""Calling an author's functions, which may be sync or async, without stalling the event loop.

1. A coroutine function runs on the loop; anything else runs in a thread, and if it returns an awaitable, that is awaited.
2. Threads see the caller's context variables, so code deep inside a tool still knows which call it belongs to.
3. A thread cannot be interrupted. Cancelling the wait runs ``on_cancel`` (which ends what the thread waits for), and the
   cancellation goes on only when the thread has ended: nothing is left running behind the caller's back.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")

_MAX_THREADS = 512
"""More than the requests a worker accepts at once, so that no call waits for another one's thread."""

_executor = ThreadPoolExecutor(max_workers=_MAX_THREADS, thread_name_prefix="call")
# Threads are kept for reuse: when the agent has used up the container's process limit, no new one can be started.


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
    started = asyncio.wrap_future(_submit(contextvars.copy_context(), fn, args))
    cancelled: asyncio.CancelledError | None = None
    while not started.done():
        try:
            await asyncio.wait([started])
        except asyncio.CancelledError as exc:
            cancelled = exc
            if on_cancel is not None:
                on_cancel()
    if cancelled is not None:
        started.exception()  # seen: the cancellation is what the caller gets
        raise cancelled
    kind, value = started.result()
    if kind == "raised":
        raise value
    return value  # type: ignore[no-any-return]


def _submit(context: contextvars.Context, fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    abandoned = False

    def run() -> tuple[str, Any]:
        # The outcome travels as a value: a future refuses to carry StopIteration, and treats CancelledError as its own.
        if abandoned:
            return "raised", RuntimeError("not run")
        try:
            return "returned", context.run(fn, *args)
        except BaseException as exc:
            return "raised", exc

    try:
        return _executor.submit(run)
    except RuntimeError as exc:
        abandoned = True  # the executor keeps the work in its queue although it could not start a thread for it
        raise RuntimeError(f"no thread could be started for the call: {exc}") from exc
