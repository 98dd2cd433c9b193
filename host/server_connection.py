"""One connection to a server that is not trusted: one request at a time; no more is taken in than was asked for."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import cast

from host.server_reader import AnswerReader, BadAnswer, Broken, Head

_SLICE_BYTES = 8 * 1024
"""Read at once: in the smallest pieces a millisecond's work."""

_PIECES_AT_ONCE = 64
"""Then others go on."""

_UNREAD_BYTES = 128 * 1024
_DRAIN_S = 2.0
_DRAIN_BYTES = 64 * 1024


class Connection(asyncio.Protocol):
    """One connection. ``on_lost`` is told of its end, whoever has ended it."""

    def __init__(self, sock: socket.socket, on_lost: Callable[[Connection], None]) -> None:
        self.idle_since = 0.0
        self._sock = sock
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._reader: AnswerReader | None = None  # None: at rest
        self._unread = bytearray()
        self._bad: BadAnswer | None = None  # what has come can't be read
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._ended: str | None = None
        self._drained: Callable[[], None] | None = None
        self._drained_until = 0.0
        self._drained_bytes = 0

    @property
    def is_sound(self) -> bool:
        """True unless it has ended."""
        return self._ended is None

    def is_alive(self) -> bool:
        """Tell whether the server has neither closed it nor said anything unasked, to the last moment."""
        if not self.is_sound:
            return False
        try:
            self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            pass
        return False

    def rest(self) -> bool:
        """Make ready for another request; False if there can be none on this connection."""
        if self._ended is not None or self._reader is None or not self._reader.complete:
            return False
        if self._unread or not self._reader.reusable:
            return False
        self._reader = None
        return True

    def send(self, request: bytes) -> None:
        """Send a request, whose answer is to be read before the next.

        Raises:
            Broken: the connection has ended.
        """
        if self._transport is None or self._ended is not None:
            raise Broken("the server closed the connection")
        self._reader = AnswerReader()
        self._transport.write(request)

    async def head(self) -> Head:
        """Return the answer's head; that of a success when something of its body, or its end, has come too.

        Raises:
            Broken, BadAnswer: there is none.
        """
        assert self._reader is not None
        while self._reader.head is None:
            await self._read(self._reader)
        return self._reader.head

    async def piece(self) -> bytes | None:
        """Return what has come of the answer's body since this was last asked, waiting for more; None at its end.

        Raises:
            Broken, BadAnswer: it doesn't come whole.
        """
        reader = self._reader
        assert reader is not None
        while not reader.pieces:
            if reader.complete:
                return None
            await self._read(reader)
        pieces, reader.pieces = reader.pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _read(self, reader: AnswerReader) -> None:
        """Read a little more of the answer, when it has come."""
        while not self._unread:
            if self._bad is not None:
                raise self._bad
            if self._ended is not None:
                if reader.end():
                    return
                raise Broken(self._ended)
            await self._more()
            if reader.has_news:
                return
        self._read_slice(reader)
        if len(reader.pieces) > _PIECES_AT_ONCE:
            await asyncio.sleep(0)  # others go on, however small the pieces are

    def _read_slice(self, reader: AnswerReader) -> None:
        if len(self._unread) <= _SLICE_BYTES:
            data, self._unread = self._unread, bytearray()
        else:
            data = self._unread[:_SLICE_BYTES]
            del self._unread[:_SLICE_BYTES]
        reader.feed(data)

    async def _more(self) -> None:
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
        """Read the rest of an answer that nobody wants any more; ``done`` is called when it has come, if that is soon.

        Its owner calls ``end_slow_drain`` now and then: a timer for each answer would cost more than the rest of it.
        """
        self._drained = done
        self._drained_until = asyncio.get_running_loop().time() + _DRAIN_S
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
        self._drain()

    def end_slow_drain(self) -> None:
        """Break it off if the rest of an answer has not come in time."""
        if self._drained is not None and asyncio.get_running_loop().time() >= self._drained_until:
            self.abort()

    def _drain(self) -> None:
        reader, done = self._reader, self._drained
        assert reader is not None and done is not None
        try:
            while self._unread and not reader.complete and self._drained_bytes <= _DRAIN_BYTES:
                self._drained_bytes += min(len(self._unread), _SLICE_BYTES)
                self._read_slice(reader)
                reader.pieces.clear()
        except BadAnswer:
            self.abort()
            return
        if self._drained_bytes > _DRAIN_BYTES:
            self.abort()
        elif reader.complete:
            self._forget_drain()
            done()

    def _forget_drain(self) -> None:
        self._drained, self._drained_bytes = None, 0

    def abort(self) -> None:
        """Break it off."""
        if self._transport is not None:
            self._transport.abort()

    # What the transport reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are none of asyncio's classes

    def data_received(self, data: bytes) -> None:
        if self._reader is None:  # unasked
            self.abort()
            return
        if self._waiter is not None and not self._unread and len(data) <= _SLICE_BYTES and not self._reader.has_news:
            # Who waits needn't be woken for what is nothing to it.
            try:
                self._reader.feed(data)
            except BadAnswer as exc:
                self._bad = exc
            if self._bad is not None or self._reader.has_news:
                self._wake()
            return
        self._unread += data
        if self._drained is not None:
            self._drain()
            return
        if len(self._unread) > _UNREAD_BYTES and self._transport is not None and not self._paused:
            self._paused = True
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> None:
        self._ended = self._ended or "the server closed the connection"
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = self._ended or "the server broke the connection off"
        self._forget_drain()
        self._on_lost(self)
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
