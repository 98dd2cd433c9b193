"""HTTP/1.1 with a server that is not trusted: one request at a time on a connection, everything bounded, nothing followed.

No redirects, cookies, proxies or compression; and nothing is ever sent twice. What is sent on a connection that the server has
closed meanwhile may or may not have been read, so a connection that waited is looked at just before it is used again, and one
that waited long is not used again at all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import Self

from host import __version__
from host.server_connection import Connection
from host.server_reader import BadAnswer, Head, Refused

_REUSE_S = 4.0
"""How long a connection may wait and be used again: servers close them after five seconds and more."""

_MAX_IDLE = 4
_CONNECT_S = 2.0
_TRIES, _TRY_PAUSE_S = 3, 0.3
"""For a connection; nothing has been sent before there is one."""

_AGENT = f"User-Agent: ors-host/{__version__}\r\n"


class Exchange:
    """One request that was sent, and its answer, of which the head has come. To be entered at once; over when it is left."""

    def __init__(self, http: ServerHttp, connection: Connection, head: Head) -> None:
        self.status = head.status
        self.headers = head.headers
        self.complete = False
        self._http = http
        self._connection = connection

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: object) -> None:
        if kind is None:
            self._http.give_back(self._connection, complete=self.complete)
        else:
            self._connection.abort()

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode(errors="replace")

    async def piece(self) -> bytes | None:
        """Return the next piece of the body when it comes; None when it is whole.

        Not an iterator: one that is left before its end makes a task, and wakes the event loop for it.

        Raises:
            Broken, BadAnswer: it doesn't come whole.
        """
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise BadAnswer("a packed answer, which was not asked for")
        piece = await self._connection.piece()
        self.complete = piece is None
        return piece

    async def body(self, max_bytes: int, held: Callable[[int], None] = lambda size: None) -> bytearray:
        """Return the whole body; ``held`` is told how much of it is there, as it comes.

        Raises:
            Broken, BadAnswer: it doesn't come whole, or is over the limit.
        """
        announced = self.headers.get(b"content-length", b"0")
        if len(announced) > 18 or int(announced) > max_bytes:
            raise BadAnswer(f"an answer of more than {max_bytes} bytes")
        whole = bytearray()
        while (piece := await self.piece()) is not None:
            whole += piece
            if len(whole) > max_bytes:
                raise BadAnswer(f"an answer of more than {max_bytes} bytes")
            held(len(whole))
        return whole


class ServerHttp:
    """The connections to one server. ``make_socket`` returns a socket, not connected; ``address`` is where it connects to."""

    def __init__(self, make_socket: Callable[[str], Awaitable[socket.socket]], port: int) -> None:
        self.address = "127.0.0.1"
        self._make_socket = make_socket
        self._port = port
        self._idle: list[Connection] = []
        self._all: set[Connection] = set()
        self._closed = False
        # The head of the last request alone: there may be secrets in one, and those go with their session at the latest.
        self._asked: tuple[object, ...] = ()
        self._head = b""

    @property
    def busy(self) -> bool:
        """True while a request is open."""
        return len(self._all) > len(self._idle)

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tries: int = _TRIES,
    ) -> Exchange:
        """Send a request: ``async with await …`` has its answer, of which the body is still to be read.

        It is sent once; ``tries`` is how often a connection is asked for. Not a generator's context: it would cost as much as
        what is sent.

        Raises:
            Refused, Broken, BadAnswer: there is no answer.
        """
        request = self._written(method, path, headers or {}, body)
        connection = await self._free_connection(tries)
        try:
            connection.send(request)
            return Exchange(self, connection, await connection.head())
        except BaseException:
            connection.abort()
            raise

    async def probe(self) -> None:
        """See whether the server takes connections.

        Raises:
            Refused: it doesn't.
        """
        (await self._connect(_TRIES)).close()

    def end_slow_drains(self) -> None:
        """Break off what is still open for the end of an answer that should have come long ago. To be called now and then."""
        for connection in tuple(self._all):
            connection.end_slow_drain()

    def close(self) -> None:
        """Break all connections off."""
        self._closed = True
        for connection in tuple(self._all):
            connection.abort()

    def _written(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> bytes:
        address = f"[{self.address}]" if ":" in self.address else self.address
        asked = (method, path, address, *headers.items())
        if asked != self._asked:  # a session's calls all begin alike
            self._asked, self._head = asked, _head(method, path, f"{address}:{self._port}", headers)
        head = self._head
        if body is not None:
            return b"%bContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (head, len(body), body)
        return head + (b"\r\n" if method == "GET" else b"Content-Length: 0\r\n\r\n")

    async def _free_connection(self, tries: int) -> Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < _REUSE_S and connection.is_alive():
                return connection
            connection.abort()
        sock = await self._connect(tries)
        connection = Connection(sock, self._lost)
        self._all.add(connection)
        try:
            await asyncio.get_running_loop().create_connection(lambda: connection, sock=sock)
        except BaseException as exc:
            self._lost(connection)
            sock.close()
            if isinstance(exc, OSError):
                raise Refused(str(exc)) from None
            raise
        return connection

    async def _connect(self, tries: int) -> socket.socket:
        for _ in range(tries - 1):
            try:
                return await self._connect_once()
            except Refused:
                if self._closed:
                    raise
                await asyncio.sleep(_TRY_PAUSE_S)
        return await self._connect_once()

    async def _connect_once(self) -> socket.socket:
        if self._closed:
            raise Refused("the channel was closed")
        try:
            sock = await self._make_socket(self.address)
        except OSError as exc:
            raise Refused(f"no socket: {exc.strerror}") from None
        try:
            async with asyncio.timeout(_CONNECT_S):
                await asyncio.get_running_loop().sock_connect(sock, (self.address, self._port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except BaseException as exc:
            sock.close()
            if isinstance(exc, TimeoutError):
                raise Refused(f"no connection within {_CONNECT_S:g} s") from None
            if isinstance(exc, OSError):
                raise Refused(str(exc.strerror or exc)) from None
            raise
        if self._closed:
            sock.close()
            raise Refused("the channel was closed")
        return sock

    def _lost(self, connection: Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def give_back(self, connection: Connection, *, complete: bool) -> None:
        """Take a connection back; ``complete``: its answer was read to the end."""
        if self._closed or not connection.is_sound:
            connection.abort()
        elif complete:
            self._keep(connection)
        else:  # what was wanted of it has come; its end is about to
            connection.drain(lambda: self._keep(connection))

    def _keep(self, connection: Connection) -> None:
        if self._closed or len(self._idle) >= _MAX_IDLE or not connection.rest():
            connection.abort()
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)


def _head(method: str, path: str, host: str, headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            raise BadAnswer(f"a request that can't be sent: {name} is no header's value")
    fields = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{_AGENT}{fields}".encode()
