"""A host that is served from fakes, and what a test says to it."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import anyio
from ors.client._http import _parse_sse_events

from host.app import make_app
from host.auth import Keys
from host.capacity import Capacity
from host.catalog import Catalog
from host.dashboard import Dashboard
from host.engine import LABEL_SANDBOX, Role
from host.errors import Failure, Reason
from host.gauges import show_gauges
from host.history import History
from host.listening import bind, listening
from host.overview import Overview
from host.pool import Pool
from host.recording import Recorder
from host.sandbox_host import SandboxHost
from host.sessions import Sessions
from host.settings import Settings
from host.state import StateDir
from host.timelines import Timelines
from tests.host.fakes import TAG, FakeContainer, FakeEngine

Events = list[tuple[str, str]]
Serve = Callable[..., Awaitable["Server"]]

SHUTDOWN = Failure(Reason.HOST_SHUTDOWN, "the server is shutting down")


async def until(condition: Callable[[], bool], *, timeout_s: float = 10) -> None:
    """Let the loop turn until ``condition`` holds: for conditions that nobody tells of."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def result_of(events: Events) -> Any:
    """Return the result that the events carry, as the clients put it together."""
    assert events[-1][0] == "end", events
    return json.loads("".join(data for name, data in events if name in ("chunk", "end")))


def secrets_header(**secrets: str) -> dict[str, str]:
    """Return the header by which both public clients send secrets."""
    text = json.dumps({name: {"value": value} for name, value in secrets.items()})
    return {"X-Secrets": base64.b64encode(text.encode()).decode()}


@dataclass
class Server:
    """A running host over a ``FakeEngine``, and a client of it."""

    engine: FakeEngine
    host: SandboxHost
    catalog: Catalog
    sessions: Sessions
    pool: Pool
    client: aiohttp.ClientSession
    overview: Overview

    async def get(self, path: str, sid: str | None = None, **kwargs: Any) -> tuple[int, Any]:
        """GET; return status and decoded body."""
        return await self._json("GET", path, sid, **kwargs)

    async def post(self, path: str, sid: str | None = None, **kwargs: Any) -> tuple[int, Any]:
        """POST; return status and decoded body."""
        return await self._json("POST", path, sid, **kwargs)

    async def create(self, sid: str = "s1", **body: Any) -> FakeContainer:
        """Create a session, by task_spec unless the body says else; return its container."""
        body = body or {"task_spec": {"id": 0}}
        status, answer = await self.post("/create", sid, json=body)
        assert (status, answer) == (200, {"sid": sid})
        return self.container(sid)

    def container(self, sid: str) -> FakeContainer:
        """Return a session's container."""
        (found,) = [c for c in self.engine.of(Role.SESSION) if self.sid_of(c) == sid]
        return found

    def sid_of(self, container: FakeContainer) -> str | None:
        """Return which session a container is for."""
        assignment = self.host.state.assignment(container.spec.labels[LABEL_SANDBOX])
        return assignment.session if assignment else None

    async def delete(self, sid: str = "s1") -> None:
        """Delete a session, which never fails."""
        assert await self.post("/delete", sid) == (200, {"sid": sid})

    @asynccontextmanager
    async def open_call(
        self, sid: str = "s1", *, task_id: str | None = None, tool_input: dict[str, Any] | None = None
    ) -> AsyncIterator[tuple[AsyncIterator[tuple[str, str]], aiohttp.ClientResponse]]:
        """POST a call; give its events as the public client reads them, and the response."""
        body: dict[str, Any] = {"name": "bash", "input": tool_input or {}}
        if task_id is not None:
            body["task_id"] = task_id
        async with self.client.post("/bashenv/call", json=body, headers={"X-Session-ID": sid}) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            yield _parse_sse_events(response), response

    async def call(self, sid: str = "s1", **kwargs: Any) -> Events:
        """Run a call to its end; return all its events."""
        async with self.open_call(sid, **kwargs) as (events, _response):
            return [event async for event in events]

    async def begin_call(self, sid: str = "s1", **kwargs: Any) -> tuple[str, asyncio.Task[Events]]:
        """Start a call; return its id, and a task that gathers the events after that."""
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def run() -> Events:
            async with self.open_call(sid, **kwargs) as (events, _response):
                name, data = await anext(events)
                assert name == "task_id"
                begun.set_result(data)
                return [event async for event in events]

        task = asyncio.create_task(run())
        await asyncio.wait((begun, task), return_when=asyncio.FIRST_COMPLETED)
        if not begun.done():
            raise AssertionError(f"the stream ended without a task_id: {task.result()}")
        return begun.result(), task

    async def _json(self, method: str, path: str, sid: str | None, **kwargs: Any) -> tuple[int, Any]:
        headers = dict(kwargs.pop("headers", {}))
        if sid is not None:
            headers["X-Session-ID"] = sid
        async with self.client.request(method, path, headers=headers, allow_redirects=False, **kwargs) as response:
            return response.status, await response.json()


async def being_made(server: Server, sid: str, method: str) -> FakeContainer:
    """Wait until a session's runtime was asked ``method``."""
    await until(lambda: any(server.sid_of(c) == sid for c in server.engine.of(Role.SESSION)))
    container = server.container(sid)
    await container.runtime.wait_received(method)
    return container


@asynccontextmanager
async def serving(
    state_dir: Path, engine: FakeEngine, tags: tuple[str, ...] = (TAG,), **limits: Any
) -> AsyncIterator[Server]:
    """Serve on a free port until the block is left, wired as ``host.serve`` does it."""
    limits = {"warm": 0, **limits}
    settings = Settings(host="127.0.0.1", port=0, state_dir=state_dir, image=tags, **limits)
    state, sock = StateDir.open(settings.state_dir), bind(settings)
    host = SandboxHost(engine, state, settings)  # type: ignore[arg-type]
    capacity = Capacity(settings.max_sessions, queue_size=settings.queue_size, queue_timeout_s=settings.queue_timeout_s)
    recorder = Recorder(settings)
    recording = ExitStack()
    recording.enter_context(recorder.running())
    try:
        async with Catalog.open(host, tags) as catalog, anyio.create_task_group() as tasks:
            pool = Pool(host, capacity, lambda: catalog.images, clock=time.monotonic)
            timelines = Timelines(recorder)
            sessions = Sessions(host=host, pool=pool, tasks=tasks, clock=time.monotonic, timelines=timelines)
            history = History(timelines.tally, lambda: (len(sessions), capacity.waiting))
            overview = Overview(host, pool, sessions, history, recorder, started_at=time.time())
            show_gauges(host, capacity, pool, sessions)
            tasks.start_soon(pool.run)
            tasks.start_soon(catalog.follow)
            app = make_app(
                catalog,
                sessions,
                max_body_bytes=settings.max_body,
                body_timeout_s=settings.body_timeout_s,
                keys=Keys.of(settings),
                dashboard=Dashboard(overview),
            )
            async with (
                listening(app, sock, max_connections=settings.max_connections),
                aiohttp.ClientSession(f"http://127.0.0.1:{sock.getsockname()[1]}") as client,
            ):
                yield Server(engine, host, catalog, sessions, pool, client, overview)
                pool.close()
                await sessions.close_all(SHUTDOWN)
                await pool.wait_closed()
                assert engine.of(Role.SESSION) == []
                await until(lambda: len(host.state.sandbox_ids()) == len(engine.containers))
            tasks.cancel_scope.cancel()
    finally:
        recording.close()
        sock.close()
        state.close()
