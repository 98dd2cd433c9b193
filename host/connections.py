"""Connections of clients: how many there may be, and how long one may stay without saying what it wants.

aiohttp takes whoever comes for as long as they stay. But file descriptors are few, and the engine and the containers need
theirs: so over the limit a connection is closed as soon as it is accepted, and so is one that has sent no whole request.
"""

from __future__ import annotations

import asyncio
import resource
from typing import cast
from weakref import WeakSet

from aiohttp import web

FIRST_REQUEST_S = 30.0
"""For the head of the first request to arrive; clients send it at once."""

KEEPALIVE_S = 75.0
"""Between requests on one connection; both public clients close theirs after 15 s."""

_DESCRIPTORS_KEPT = 256
"""For the engine, sockets, files; sessions take two each, of the other half."""


SERVED: web.AppKey[WeakSet[asyncio.BaseTransport]] = web.AppKey("served", WeakSet)
"""The connections that have sent a request, in an application that keeps count of them."""


class Gate:
    """The protocol factory in front of a server's."""

    def __init__(self, server: web.Server, served: WeakSet[asyncio.BaseTransport], *, max_connections: int) -> None:
        self._server = server
        self._max_connections = min(max_connections, _descriptors() // 2)
        self._served = served

    def __call__(self) -> asyncio.Protocol:
        return _AtTheGate(self)

    def admit(self, transport: asyncio.Transport) -> None:
        """Hand a new connection to the server, or close it."""
        if len(self._server.connections) >= self._max_connections:
            transport.abort()
            return
        handler = self._server()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        asyncio.get_running_loop().call_later(FIRST_REQUEST_S, self._expect_request, transport)

    def _expect_request(self, transport: asyncio.Transport) -> None:
        if transport not in self._served and not transport.is_closing():
            transport.abort()


class _AtTheGate(asyncio.Protocol):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._gate.admit(cast(asyncio.Transport, transport))  # uvloop's are none of asyncio's classes


def _descriptors() -> int:
    """Return how many files this process may open; the soft limit is raised to the hard one first."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(hard - _DESCRIPTORS_KEPT, _DESCRIPTORS_KEPT)
