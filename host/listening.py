"""The port: taken first, answered while the host starts, then by the application.

What is answered while it starts is that it lives (``/health``), and to all else that asking again is right: so a client that
was there before a restart, or is there before the first container answers, need not give up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakSet

import anyio
from aiohttp import hdrs, web

from host.connections import KEEPALIVE_S, SERVED, Gate
from host.errors import StartupError
from host.settings import Settings

_GONE_MS = 60_000
_HANDLERS_END_S = 5.0
"""For responses to be written out once their sessions have ended."""

_HEADER_BYTES = 64 * 1024
"""For one header: secrets come in a header, and some of them are key files."""

_HTTP_LOG = logging.getLogger("host.http")
"""Mute: aiohttp quotes headers that it can't parse, secrets and all. What goes wrong in a handler is logged by ``app.py``."""
_HTTP_LOG.disabled = True


def bind(settings: Settings) -> socket.socket:
    """Take the port, which is the cheapest thing that can be wrong.

    Raises:
        StartupError: it can't be had; the sentence says what to do.
    """
    try:
        found = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _name, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as exc:
        raise StartupError(f"can't listen on {settings.host!r}: {exc.strerror}") from exc
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Inherited by what is accepted: a client whose machine vanished is noticed when it doesn't acknowledge.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _GONE_MS)
        sock.bind(address)
        sock.setblocking(False)
    except OSError as exc:
        sock.close()
        advice = {
            errno.EADDRNOTAVAIL: "that is no address of this machine; choose one of its own with --host, or 0.0.0.0 for all",
            errno.EACCES: "ports below 1024 are root's; choose another with --port",
        }.get(exc.errno or 0, "choose another with --port")
        raise StartupError(f"can't listen on {settings.host}:{settings.port}: {exc.strerror}; {advice}") from exc
    return sock


def url_of(sock: socket.socket) -> str:
    """Return the URL of a port that was taken."""
    address, port = sock.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


@asynccontextmanager
async def listening(app: web.Application, sock: socket.socket, *, max_connections: int = 4096) -> AsyncIterator[None]:
    """Answer with ``app`` for the length of the block. The socket is closed with it.

    Raises:
        StartupError: another process was quicker.
    """
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=_HTTP_LOG,
        max_field_size=_HEADER_BYTES,
        keepalive_timeout=KEEPALIVE_S,
        shutdown_timeout=_HANDLERS_END_S,
        auto_decompress=False,  # a small body that unpacks to a large one is refused, not unpacked
    )
    await runner.setup()
    assert runner.server is not None
    gate = Gate(runner.server, app[SERVED], max_connections=max_connections)
    try:
        listener = await asyncio.get_running_loop().create_server(gate, sock=sock, backlog=1024)
    except OSError as exc:  # bound since the start, but by another process as well, which was quicker to listen
        raise StartupError(f"can't listen: {exc.strerror}; choose another port with --port") from exc
    try:
        yield
    finally:
        listener.close()
        with anyio.CancelScope(shield=True):
            await runner.cleanup()


@asynccontextmanager
async def answering_that_it_starts(sock: socket.socket, *, max_connections: int = 4096) -> AsyncIterator[None]:
    """Answer that the host starts, for the length of the block; whoever comes as it is left waits in the socket's queue.

    Raises:
        StartupError: another process was quicker.
    """
    app = web.Application()
    app[SERVED] = WeakSet()
    app.router.add_route("*", "/{path:.*}", _starting)
    async with listening(app, sock.dup(), max_connections=max_connections):
        yield


async def _starting(request: web.Request) -> web.Response:
    if request.transport is not None:
        request.app[SERVED].add(request.transport)
    if request.path == "/health":
        response = web.json_response({"status": "ok"})
    else:
        body = {"detail": "the server is starting", "reason": "starting"}
        headers = {hdrs.RETRY_AFTER: "2", "X-Backend-State": "starting"}
        response = web.json_response(body, status=503, headers=headers)
    response.force_close()  # the next request is the application's
    return response
