"""The way out: an HTTP proxy on a unix socket, for containers that have no network at all.

A container's network is ``none`` always. With a policy, a second directory of the host's is mounted in it, with a socket on
which this proxy listens: nothing in the container can lift a rule that is applied out here.

1. Only names, no addresses; a name is judged by the policy, then looked up out here, and its addresses judged (``network``).
2. CONNECT to port 443, and plain requests to port 80, which are parsed and written anew, one to a connection.
3. Under a list of names, a tunnel must begin as TLS and ask the server for the very name it was opened to.
4. Everything is bounded: connections of a sandbox and of all, bytes in memory, the time for a request to come and for silence.

The socket is anybody's in the container, the agent's too; it can't be used to speak as the runtime, whose socket is another.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Self

import anyio
import h11
import structlog
from anyio.abc import TaskGroup

from host.egress_policy import EgressPolicy
from host.network import Network, Unreachable
from host.proxy_request import Refused, Target, request_to, target_of
from host.tls_name import NotTLS, ServerNameReader

log = structlog.get_logger()

SOCKET_NAME = "proxy.sock"

_CHUNK_BYTES = 32 * 1024
_MAX_HEAD_BYTES = 32 * 1024
_MAX_HELLO_BYTES = 64 * 1024
_HEAD_TIMEOUT_S = 30
"""For a request, and for the first message of TLS, to have come in."""

_SILENCE_TIMEOUT_S = 300
_MAX_CONNECTIONS = 32
"""Of one sandbox. Browsers open six to a server; package managers twenty or so in all."""


class Egress:
    """The proxy of all sandboxes of a host; see ``open``."""

    def __init__(self, network: Network, tasks: TaskGroup, *, max_connections: int) -> None:
        self.max_connections = max_connections
        self._network = network
        self._tasks = tasks

    @classmethod
    @asynccontextmanager
    async def open(cls, network: Network | None = None, *, max_sandboxes: int) -> AsyncIterator[Self]:
        """Serve the outlets that are opened until the block is left."""
        network = network or Network()
        try:
            async with anyio.create_task_group() as tasks:
                yield cls(network, tasks, max_connections=_connections_each(max_sandboxes))
                tasks.cancel_scope.cancel()
        finally:
            network.close()

    def outlet(self, directory: Path, policy: EgressPolicy) -> Outlet:
        """Listen in ``directory``, which is made if it isn't there, until the outlet is closed.

        ``policy`` says what can be reached through it.

        Raises:
            OSError: the directory or the socket can't be made.
        """
        outlet = Outlet(self, directory, policy)
        self._tasks.start_soon(outlet._run)
        return outlet

    async def _serve(self, client: socket.socket, policy: EgressPolicy) -> None:
        try:
            with anyio.fail_after(_HEAD_TIMEOUT_S):
                connection, request = await _read_request(client)
            try:
                target = target_of(request)
                if not policy.allows(target.name):
                    raise Refused(403, f"{target.name} is not on the list of hosts that may be reached from here")
                server = await self._network.connect(target.name, target.port)
            except Unreachable as exc:
                raise Refused(502, str(exc)) from exc
        except Refused as exc:
            log.debug("egress_refused", reason=str(exc))
            await _answer(client, exc)
            return
        with server:
            if target.tunnel:
                await _tunnel(client, server, target, connection, policy)
            else:
                await _forward(client, server, target, connection, request)


class Outlet:
    """One sandbox's socket."""

    def __init__(self, egress: Egress, directory: Path, policy: EgressPolicy) -> None:
        self._egress = egress
        self._policy = policy
        self._scope = anyio.CancelScope()
        self._closed = anyio.Event()
        directory.mkdir(mode=0o755, exist_ok=True)
        os.chmod(directory, 0o755)
        path = directory / SOCKET_NAME
        path.unlink(missing_ok=True)  # an earlier host's
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._listener.setblocking(False)
            self._listener.bind(str(path))
            os.chmod(path, 0o666)
            self._listener.listen(_MAX_CONNECTIONS)
        except BaseException:
            self._listener.close()
            raise

    async def aclose(self) -> None:
        """Cut what runs and stop listening."""
        self._scope.cancel()
        with anyio.CancelScope(shield=True):
            await self._closed.wait()

    async def _run(self) -> None:
        places = anyio.Semaphore(self._egress.max_connections)
        try:
            with self._listener, self._scope:
                async with anyio.create_task_group() as tasks:
                    while True:
                        # Those over the limit wait in the listener's queue, then in the container.
                        await places.acquire()
                        tasks.start_soon(self._serve, await self._accept(), places)
        finally:
            self._closed.set()

    async def _accept(self) -> socket.socket:
        while True:
            try:
                client, _ = await asyncio.get_running_loop().sock_accept(self._listener)
                return client
            except OSError as exc:  # out of descriptors: others need them more
                log.warning("egress_accept_failed", error=str(exc))
                await anyio.sleep(1)

    async def _serve(self, client: socket.socket, places: anyio.Semaphore) -> None:
        try:
            # Whoever hangs up, stays silent or talks nonsense is hung up on; nobody waits for more.
            with client, contextlib.suppress(OSError, NotTLS, h11.ProtocolError):
                await self._egress._serve(client, self._policy)
        except Exception:
            log.exception("egress_crashed")  # one connection's failure is its own
        finally:
            places.release()


def _connections_each(max_sandboxes: int) -> int:
    """Return how many connections each sandbox may have, so that all of them together leave half of the descriptors.

    Raises this process's own limit as far as it goes.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * 2 * _MAX_CONNECTIONS * max_sandboxes
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return _MAX_CONNECTIONS if soft >= wanted else max(1, soft // 4 // max_sandboxes)


# --- One connection ---------------------------------------------------------------------------------------------------


async def _read_request(client: socket.socket) -> tuple[h11.Connection, h11.Request]:
    """Return the first request on a connection, its body unread.

    Raises:
        Refused: it is none.
        OSError: the client hung up.
    """
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
    try:
        event = await _next_event(connection, client)
    except h11.RemoteProtocolError as exc:
        raise Refused(exc.error_status_hint, f"not a request: {exc}") from exc
    if not isinstance(event, h11.Request):
        raise ConnectionResetError
    return connection, event


async def _next_event(connection: h11.Connection, client: socket.socket) -> h11.Event | None:
    """Return what comes next of a request; None if there is no more of it."""
    while not isinstance(event := connection.next_event(), h11.Event):
        if event is h11.PAUSED:
            return None
        if connection.they_are_waiting_for_100_continue:
            go_on = h11.InformationalResponse(status_code=100, headers=[])
            await asyncio.get_running_loop().sock_sendall(client, connection.send(go_on) or b"")
        connection.receive_data(await asyncio.get_running_loop().sock_recv(client, _CHUNK_BYTES))
    return event


async def _answer(client: socket.socket, refusal: Refused) -> None:
    body = f"ors-host: {refusal}\n".encode()
    head = (
        f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    loop = asyncio.get_running_loop()
    with anyio.fail_after(_HEAD_TIMEOUT_S):
        await loop.sock_sendall(client, head.encode() + body)
        client.shutdown(socket.SHUT_WR)
        # What it still sends must be read, or the answer would be lost with the connection.
        for _ in range(_MAX_HEAD_BYTES):
            if not await loop.sock_recv(client, _CHUNK_BYTES):
                return


async def _read_hello(client: socket.socket, early: bytes, name: str) -> bytes:
    """Return what a client sent up to the end of its first TLS message, which asks for ``name``.

    Raises:
        NotTLS: it is something else, or asks for another name.
    """
    reader, data = ServerNameReader(), early
    complete = reader.feed(early) if early else False
    while not complete:
        if len(data) > _MAX_HELLO_BYTES:
            raise NotTLS("too long")
        chunk = await asyncio.get_running_loop().sock_recv(client, _CHUNK_BYTES)
        if not chunk:
            raise ConnectionResetError
        data += chunk
        complete = reader.feed(chunk)
    if reader.name is None or reader.name.lower().removesuffix(".") != name:
        log.debug("egress_refused", reason=f"a tunnel to {name} that asks for another name")
        raise NotTLS("another name")
    return data


async def _tunnel(
    client: socket.socket, server: socket.socket, target: Target, connection: h11.Connection, policy: EgressPolicy
) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, b"HTTP/1.1 200 Connection established\r\n\r\n")
    early = bytes(connection.trailing_data[0])
    if policy.allowed is not None:
        with anyio.fail_after(_HEAD_TIMEOUT_S):
            early = await _read_hello(client, early, target.name)
    if early:
        await loop.sock_sendall(server, early)
    await _relay(client, server)


async def _forward(
    client: socket.socket, server: socket.socket, target: Target, connection: h11.Connection, request: h11.Request
) -> None:
    """Send one plain request on, and its answer back."""
    loop = asyncio.get_running_loop()
    outgoing = h11.Connection(h11.CLIENT)
    with anyio.fail_after(_SILENCE_TIMEOUT_S) as silence:
        await loop.sock_sendall(server, outgoing.send(request_to(target, request)) or b"")
        while isinstance(event := await _next_event(connection, client), h11.Data | h11.EndOfMessage):
            try:
                await loop.sock_sendall(server, outgoing.send(event) or b"")
            except OSError:  # a server that has heard enough; what it said counts
                break
            silence.deadline = anyio.current_time() + _SILENCE_TIMEOUT_S
            if isinstance(event, h11.EndOfMessage):
                break
        await _copy(server, client, silence)


async def _relay(client: socket.socket, server: socket.socket) -> None:
    """Copy both ways until both sides have said all, or neither says anything for long."""
    with anyio.move_on_after(_SILENCE_TIMEOUT_S) as silence:
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(_copy, client, server, silence)
                tasks.start_soon(_copy, server, client, silence)
        except* OSError:
            pass


async def _copy(source: socket.socket, sink: socket.socket, silence: anyio.CancelScope) -> None:
    loop = asyncio.get_running_loop()
    while data := await loop.sock_recv(source, _CHUNK_BYTES):
        await loop.sock_sendall(sink, data)
        silence.deadline = anyio.current_time() + _SILENCE_TIMEOUT_S
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
