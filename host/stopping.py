"""A server runs until it is told to stop: by a signal, or from within this process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable

import anyio
import structlog

from host.errors import StartupError
from host.logs import heed_loop
from host.patience import Patience

log = structlog.get_logger()

_AT_ONCE_S = 1.0
_SAME_WORD_S = 1.0
"""Signals closer together than this are one: `timeout` and terminals send theirs to the process and to its group."""


async def until_told(run: Callable[[anyio.Event, Patience], Awaitable[None]], stop: anyio.Event | None = None) -> None:
    """Run a server until ``stop`` is set, or a signal (SIGTERM, SIGINT) sets it; a second signal cuts the ending short.

    Raises:
        StartupError: it can't start; without the task groups' wrapping, in which it was raised.
    """
    heed_loop(asyncio.get_running_loop())
    stop = stop or anyio.Event()
    try:
        async with anyio.create_task_group() as tasks:
            patience = Patience()
            tasks.start_soon(_stop_on_signal, stop, tasks.cancel_scope, patience)
            await run(stop, patience)
            tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        if (error := _only(group)) is not None:
            raise error from None
        raise


def _only(group: BaseExceptionGroup[BaseException]) -> StartupError | None:
    """Return the start-up error that is all there is in the task groups' wrapping, if so."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, StartupError) else None


async def _stop_on_signal(stop: anyio.Event, everything: anyio.CancelScope, patience: Patience) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        told_at = -_SAME_WORD_S
        async for number in signals:
            now = anyio.current_time()
            if not stop.is_set():
                told_at = now
                stop.set()
            elif now - told_at >= _SAME_WORD_S:
                log.warning("stopping_at_once", signal=number.name)
                patience.end(_AT_ONCE_S)
                everything.cancel()
