"""HTTP/1.1 with a server that is not trusted: one request at a time on a connection, everything bounded, nothing followed.

No redirects, cookies, proxies or compression; and nothing is ever sent twice. What is sent on a connection that the server has
closed meanwhile may or may not have been read, so a connection that waited is looked at just before it is used again, and one
that waited long is not used again at all.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import h11

from host import __version__

_MAX_HEAD_BYTES = 64 * 1024
_MAX_INFORMATIONAL = 8
_MAX_PIECES = 250_000
"""Of one body. In the smallest sensible pieces, 4 KB, the largest result is 16,000; each takes some 10 µs to parse."""

_PIECES_AT_ONCE = 64
_UNREAD_BYTES = 128 * 1024
_REUSE_S = 4.0
"""How long a connection may wait and be used again: servers close them after five seconds and more."""

_DRAIN_S = 2.0
_MAX_IDLE = 4
_CONNECT_S = 2.0
_TRIES, _TRY_PAUSE_S = 3, 0.3
"""For a connection; nothing has been sent before there is one."""

_AGENT = f"ors-host/{__version__}".encode()


class HttpError(Exception):
    """No answer."""


class Refused(HttpError):
    """The server takes no connection: nothing was sent."""


class Broken(HttpError):
    """The connection broke off. What was sent may have been read."""


class BadAnswer(HttpError):
    """What came is not HTTP, or over a limit."""


class Exchange:
    """One request and its answer. ``size`` is told how many bytes of the body are held, as they come."""

    def __init__(self, connection: _Connection, response: h11.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[bytes, bytes] = dict(response.headers)
        self._connection = connection
        self.complete = False

    @property
    def content_type(self) -> str:
        """Without its parameters, in lower case."""
        return self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode(errors="replace")

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes.

        Raises:
            Broken, BadAnswer: it doesn't come whole.
        """
        if self.headers.get(b"content-encoding", b"identity").lower() != b"identity":
            raise BadAnswer("a packed answer, which was not asked for")
        count = 0
        while not isinstance(event := await self._connection.event(), h11.EndOfMessage):
            assert isinstance(event, h11.Data)
            count += 1
            if count > _MAX_PIECES:
                raise BadAnswer(f"an answer in more than {_MAX_PIECES} pieces")
            yield bytes(event.data)
        self.complete = True

    async def body(self, max_bytes: int, held: Callable[[int], None] = lambda size: None) -> bytearray:
        """Return the whole body; ``held`` is told how much of it is there, as it comes.

        Raises:
            Broken, BadAnswer: it doesn't come whole, or is over the limit.
        """
        announced = self.headers.get(b"content-length", b"0")
        if len(announced) > 18 or int(announced) > max_bytes:
            raise BadAnswer(f"an answer of more than {max_bytes} bytes")
        whole = bytearray()
        async for piece in self.pieces():
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
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        self._closed = False

    @property
    def busy(self) -> bool:
        """True while a request is open."""
        return len(self._all) > len(self._idle)

    @asynccontextmanager
    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
        tries: int = _TRIES,
    ) -> AsyncIterator[Exchange]:
        """Send a request; the block has its answer, of which the body is still to be read.

        It is sent once; ``tries`` is how often a connection is asked for.

        Raises:
            Refused, Broken, BadAnswer: there is no answer; also in the block.
        """
        connection = await self._connection(tries)
        try:
            connection.send(self._head(method, path, headers or {}, body), body)
            exchange = Exchange(connection, await connection.response())
            yield exchange
        except BaseException:
            connection.abort()
            raise
        self._give_back(connection, exchange)

    async def probe(self) -> None:
        """See whether the server takes connections.

        Raises:
            Refused: it doesn't.
        """
        (await self._connect(_TRIES)).close()

    def close(self) -> None:
        """Break all connections off."""
        self._closed = True
        for connection in tuple(self._all):
            connection.abort()

    def _head(self, method: str, path: str, headers: Mapping[str, str], body: bytes | None) -> h11.Request:
        fields: list[tuple[bytes, bytes]] = [
            (b"Host", f"{self.address}:{self._port}".encode()),
            (b"User-Agent", _AGENT),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ]
        if body is not None:
            fields += [(b"Content-Type", b"application/json"), (b"Content-Length", str(len(body)).encode())]
        elif method != "GET":
            fields.append((b"Content-Length", b"0"))
        return h11.Request(method=method.encode(), target=path.encode(), headers=fields)

    async def _connection(self, tries: int) -> _Connection:
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if now - connection.idle_since < _REUSE_S and connection.is_alive():
                return connection
            connection.abort()
        sock = await self._connect(tries)
        connection = _Connection(sock, self._lost)
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

    def _lost(self, connection: _Connection) -> None:
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _give_back(self, connection: _Connection, exchange: Exchange) -> None:
        if self._closed or not connection.is_sound:
            connection.abort()
        elif exchange.complete:
            self._keep(connection)
        else:  # what was wanted of it has come; its end is about to
            connection.drain(lambda: self._keep(connection))

    def _keep(self, connection: _Connection) -> None:
        if self._closed or len(self._idle) >= _MAX_IDLE or not connection.next_cycle():
            connection.abort()
        else:
            connection.idle_since = asyncio.get_running_loop().time()
            self._idle.append(connection)


class _Connection(asyncio.Protocol):
    """One connection: bytes to h11 as they come, events to whoever asks; no more is taken in than was asked for."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[_Connection], None]) -> None:
        self.idle_since = 0.0
        self._sock = sock
        self._on_lost = on_lost
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._unread = 0
        self._paused = False
        self._events = 0
        self._ended: str | None = None
        self._idle = False
        self._drained: Callable[[], None] | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self._drained_pieces = 0

    @property
    def is_sound(self) -> bool:
        return self._ended is None and h11.ERROR not in (self._http.our_state, self._http.their_state)

    def is_alive(self) -> bool:
        """Tell whether the server has neither closed it nor said anything unasked, to the last moment."""
        if not self.is_sound:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            self._idle = False
            return True
        except OSError:
            pass
        return False

    def next_cycle(self) -> bool:
        """Make ready for another request; False if there can be none on this connection."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE or self._ended is not None:
            return False
        if self._http.trailing_data[0]:
            return False
        self._http.start_next_cycle()
        self._idle = True
        return True

    def send(self, head: h11.Request, body: bytes | None) -> None:
        if self._transport is None or self._ended is not None:
            raise Broken("the server closed the connection")
        try:
            parts = [self._http.send(head)]
            if body is not None:
                parts.append(self._http.send(h11.Data(data=body)))
            parts.append(self._http.send(h11.EndOfMessage()))
        except h11.LocalProtocolError as exc:
            raise BadAnswer(f"a request that can't be sent: {exc}") from None
        self._transport.write(b"".join(part for part in parts if part))

    async def response(self) -> h11.Response:
        for _ in range(_MAX_INFORMATIONAL):
            event = await self.event()
            if isinstance(event, h11.Response):
                return event
        raise BadAnswer("preliminary answers without end")

    async def event(self) -> h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage:
        while True:
            self._events += 1
            if self._events % _PIECES_AT_ONCE == 0:
                await asyncio.sleep(0)  # others go on, however small the pieces are
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as exc:
                if self._ended is not None:
                    raise Broken(self._ended) from None
                raise BadAnswer(f"not HTTP: {exc}") from None
            if event is h11.NEED_DATA:
                await self._more()
            elif isinstance(event, h11.Response | h11.InformationalResponse | h11.Data | h11.EndOfMessage):
                return event
            elif isinstance(event, h11.ConnectionClosed):
                raise Broken("the server closed the connection")
            else:
                raise BadAnswer("an answer that is none to the request")

    async def _more(self) -> None:
        if self._ended is not None:
            raise Broken(self._ended)
        self._unread = 0
        assert self._transport is not None
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def drain(self, done: Callable[[], None]) -> None:
        """Read the rest of an answer that nobody wants any more; ``done`` is called when it has come, if that is soon."""
        self._drained = done
        self._drain_timer = asyncio.get_running_loop().call_later(_DRAIN_S, self.abort)
        self._drain()

    def _drain(self) -> None:
        try:
            while isinstance(event := self._http.next_event(), h11.Data):
                self._drained_pieces += 1
                if self._drained_pieces > _PIECES_AT_ONCE:
                    break
        except h11.RemoteProtocolError:
            event = h11.PAUSED
        if event is h11.NEED_DATA and self._ended is None:
            return
        done, self._drained = self._drained, None
        assert done is not None and self._drain_timer is not None
        self._drain_timer.cancel()
        if isinstance(event, h11.EndOfMessage):
            self._drained_pieces = 0
            done()
        else:
            self.abort()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._idle:  # unasked
            self.abort()
            return
        self._http.receive_data(data)
        if self._drained is not None:
            self._drain()
            return
        self._unread += len(data)
        if self._unread > _UNREAD_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = self._ended or "the server closed the connection"
        self._http.receive_data(b"")
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._ended or "the server broke the connection off"
        self._drained = None
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        self._on_lost(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
