"""A host of one's own for a while: on a free port of this machine, with a state directory that is gone afterwards."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio

from host.errors import StartupError
from host.serve import serve
from host.settings import Settings
from host.state_view import StateView

_LOOK_S = 0.05


@dataclass(frozen=True)
class PrivateHost:
    """Where it is."""

    url: str
    state: StateView


@asynccontextmanager
async def private_host(settings: Settings) -> AsyncIterator[PrivateHost]:
    """Serve for the length of the block, and wait until nothing is left.

    Raises:
        StartupError: it can't start; the sentence says why.
    """
    with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory:  # short, for the sockets' paths
        own = {"host": "127.0.0.1", "port": 0, "state_dir": Path(directory), "on_exit": "remove", "warm": 0}
        no_keys = {"api_key": None, "api_key_file": None, "agent_key": None, "agent_key_file": None}
        settings = settings.model_copy(update={**own, **no_keys})
        stop = anyio.Event()
        failed: list[StartupError] = []

        async def run() -> None:
            try:
                await serve(settings, stop=stop)
            except StartupError as exc:
                failed.append(exc)
            finally:
                stop.set()

        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run)
                view = StateView.of(Path(directory))
                while (address := view.address()) is None and not stop.is_set():  # noqa: ASYNC110
                    await anyio.sleep(_LOOK_S)
                if address is not None:
                    try:
                        yield PrivateHost(address[0], StateView.of(Path(directory)))
                    finally:
                        stop.set()
        except BaseExceptionGroup as group:
            raise _first(group) from None
        if failed:
            raise failed[0]


def _first(error: BaseException) -> BaseException:
    """Return what was raised, without the task group's wrapping."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
