"""A short state directory, a fake engine, and hosts served from them; after each test nothing of them may be left."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.host.fakes import TAG, FakeEngine
from tests.host.served import Serve, Server, serving


def pytest_asyncio_loop_factories(item: pytest.Item) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run the host in these tests as it is run by its command line."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A directory whose path leaves room for a unix socket's."""
    path = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    try:
        yield path
        sockets = path / "s"
        assert not sockets.exists() or list(sockets.iterdir()) == [], "a sandbox's directory was left behind"
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
async def engine() -> AsyncIterator[FakeEngine]:
    """An engine with one image, ``TAG``; at the end it has no container and no runtime crashed."""
    async with FakeEngine.open() as engine:
        yield engine
        assert engine.containers == {}, "a container was left behind"
        assert engine.crashes == []


@pytest.fixture
async def serve(state_dir: Path, engine: FakeEngine) -> AsyncIterator[Serve]:
    """A function that serves a host (limits as keyword arguments); it is shut down in order at the end.

    The host lives in one task from first to last: its task groups may not be left by another task than entered them.
    """
    lives: list[tuple[asyncio.Event, asyncio.Task[None]]] = []

    async def start(tags: tuple[str, ...] = (TAG,), **limits: Any) -> Server:
        ready: asyncio.Future[Server] = asyncio.get_running_loop().create_future()
        stop = asyncio.Event()

        async def live() -> None:
            async with serving(state_dir, engine, tags, **limits) as server:
                ready.set_result(server)
                await stop.wait()

        life = asyncio.create_task(live())
        await asyncio.wait((ready, life), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            life.result()
        lives.append((stop, life))
        return ready.result()

    yield start
    for stop, life in reversed(lives):
        stop.set()
        await life


@pytest.fixture
async def server(serve: Serve) -> Server:
    """A host with the default limits."""
    return await serve()
