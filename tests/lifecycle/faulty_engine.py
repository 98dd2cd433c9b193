"""A proxy in front of the engine that understands what is asked of it, and answers late, wrongly or not at all on request.

Only the host that is pointed at it (``DOCKER_HOST``) is affected; nothing is done to the engine itself.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

ENGINE_SOCKET = "/var/run/docker.sock"

CREATE = ("POST", r"/containers/create")
START = ("POST", r"/containers/[^/]+/start")
REMOVE = ("DELETE", r"/containers/[^/]+")
LIST = ("GET", r"/containers/json")
ANYTHING = ("[A-Z]+", r"/.*")

_HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "host"}
_NO_TIMEOUT = aiohttp.ClientTimeout(total=None)


@dataclass(eq=False)
class Fault:
    """What happens to the next ``times`` requests of a kind. ``hits`` counts them."""

    method: str
    path: str
    delay_s: float = 0
    hang: bool = False
    """No answer until the fault is lifted; then the request is carried out, whether or not the client still waits."""
    status: int | None = None
    """Answer this instead of asking the engine."""
    lose: bool = False
    """Let the engine do it, and break the connection off in place of its answer."""
    times: int | None = None
    hits: int = 0

    def concerns(self, method: str, path: str) -> bool:
        """Tell whether a request is of this kind, and not one too many."""
        if self.times is not None and self.hits >= self.times:
            return False
        return bool(re.fullmatch(self.method, method) and re.fullmatch(r"(/v[\d.]+)?" + self.path, path))


class FaultyEngine:
    """The proxy, on a socket in ``directory``; its event loop runs in a thread of its own."""

    def __init__(self, directory: Path, engine_socket: str = ENGINE_SOCKET) -> None:
        self._path = directory / "engine.sock"
        self._engine_socket = engine_socket
        self._faults: list[Fault] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="faulty-engine")

    @property
    def url(self) -> str:
        """What ``DOCKER_HOST`` is to be."""
        return f"unix://{self._path}"

    def inject(
        self,
        kind: tuple[str, str],
        *,
        delay_s: float = 0,
        hang: bool = False,
        status: int | None = None,
        lose: bool = False,
        times: int | None = None,
    ) -> Fault:
        """Have something go wrong from now on."""
        fault = Fault(*kind, delay_s=delay_s, hang=hang, status=status, lose=lose, times=times)
        self._faults.append(fault)
        return fault

    @contextmanager
    def hanging(self, kind: tuple[str, str] = ANYTHING) -> Iterator[Fault]:
        """Have nothing (or nothing of a kind) answered for the length of the block."""
        fault = self.inject(kind, hang=True)
        try:
            yield fault
        finally:
            self.lift(fault)

    def lift(self, fault: Fault) -> None:
        """End one fault."""
        if fault in self._faults:
            self._faults.remove(fault)

    def heal(self) -> None:
        """End all faults."""
        self._faults.clear()

    def start(self) -> None:
        self._thread.start()
        assert self._ready.wait(10)

    def stop(self) -> None:
        self.heal()
        assert self._loop is not None and self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=1 << 30)
        connector = aiohttp.UnixConnector(self._engine_socket, limit=0, force_close=True)
        async with aiohttp.ClientSession(connector=connector, timeout=_NO_TIMEOUT, auto_decompress=False) as engine:

            async def handle(request: web.Request) -> web.StreamResponse:
                return await self._handle(request, engine)

            app.router.add_route("*", "/{path:.*}", handle)
            runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
            await runner.setup()
            await web.UnixSite(runner, str(self._path)).start()
            self._ready.set()
            await self._stop.wait()
            await runner.cleanup()

    async def _handle(self, request: web.Request, engine: aiohttp.ClientSession) -> web.StreamResponse:
        body = await request.read()
        fault = next((fault for fault in self._faults if fault.concerns(request.method, request.path)), None)
        if fault is not None:
            fault.hits += 1
            await asyncio.sleep(fault.delay_s)
            while fault.hang and fault in self._faults:  # noqa: ASYNC110 - lifted by another thread
                await asyncio.sleep(0.02)
            if fault.status is not None:
                words = "removal of container is already in progress" if fault.status == 409 else "injected"
                return web.json_response({"message": words}, status=fault.status)
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP_BY_HOP}
        url = f"http://engine{request.rel_url.raw_path_qs}"
        async with engine.request(request.method, url, data=body or None, headers=headers) as answer:
            if fault is not None and fault.lose:
                await answer.read()
                return _break_off(request)
            response = web.StreamResponse(status=answer.status)
            for name, value in answer.headers.items():
                if name.lower() not in _HOP_BY_HOP:
                    response.headers[name] = value
            try:
                await response.prepare(request)
                async for chunk in answer.content.iter_any():  # the engine's events are one endless answer
                    await response.write(chunk)
                await response.write_eof()
            except (ConnectionError, aiohttp.ClientError):
                return _break_off(request)
            return response


def _break_off(request: web.Request) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


@contextmanager
def faulty_engine(directory: Path, engine_socket: str = ENGINE_SOCKET) -> Iterator[FaultyEngine]:
    """A proxy that forwards everything until it is told otherwise, stopped at the end."""
    engine = FaultyEngine(directory, engine_socket)
    engine.start()
    try:
        yield engine
    finally:
        engine.stop()
