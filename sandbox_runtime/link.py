"""One connection to a host: frames in, messages up; answers down, frames out.

Bytes are decoded where they arrive and answers are written where they are made: there is no task, and nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from . import frames, messages
from .answering import Answer
from .jobs import Job
from .messages import Request, Response
from .output import shorten

HELLO_ID = 0
_RECEIVE_BYTES = 1 << 16


class ProtocolViolation(Exception):
    """The host said what it may not."""


class Link(asyncio.BufferedProtocol):
    """The greeting, the requests that came on a connection, and the answers that are to go.

    ``received`` gets what comes after the greeting. ``greeted`` is set when the host has answered to hello (and
    ``max_frame_bytes`` is known), or the connection has ended. ``ended`` is done when it has, by whomever; a
    ``ProtocolViolation`` if that was because the host broke the protocol.
    """

    def __init__(self, hello: Mapping[str, Any], received: Callable[[Request | Response, Link], None]) -> None:
        self.asked: dict[int, Job] = {}
        self.max_frame_bytes: int | None = None
        self.greeted = asyncio.Event()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._hello = hello
        self._received = received
        self._transport: asyncio.WriteTransport | None = None
        self._decoder = frames.FrameDecoder()
        self._buffer = memoryview(bytearray(_RECEIVE_BYTES))

    def answer(self, request_id: int, answer: Answer) -> None:
        """Answer a request, unless the connection is gone."""
        self.asked.pop(request_id, None)
        if not self.ended.done():
            assert self._transport is not None and self.max_frame_bytes is not None
            self._transport.write(answer.frame(request_id, self.max_frame_bytes))

    def close(self) -> None:
        """Hang up, and forget what is owed: nobody is there to take it."""
        self._end(None)

    # What the event loop reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(frames.encode_frame(messages.request(HELLO_ID, "hello", self._hello)))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self._decoder.feed(self._buffer[:nbytes]):
                if self.ended.done():
                    return
                parsed = messages.parse_message(message)
                if self.max_frame_bytes is None:
                    self._greet(parsed)
                else:
                    self._received(parsed, self)
        except (frames.FrameError, messages.MessageError) as exc:
            self._end(ProtocolViolation(shorten(str(exc))))
        except ProtocolViolation as exc:
            self._end(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(None)  # a host that died hard is as gone as one that hung up

    def _greet(self, message: Request | Response) -> None:
        if not isinstance(message, Response) or message.id != HELLO_ID:
            raise ProtocolViolation("the first message is not the answer to hello")
        if message.error is not None:
            raise ProtocolViolation(f"hello was refused: {shorten(message.error.message)}")
        match message.result:
            case {"max_frame_bytes": int(max_frame_bytes), **others} if not others:
                self.max_frame_bytes = max_frame_bytes
            case _:
                raise ProtocolViolation("welcome: max_frame_bytes, a number, is needed, and nothing besides")
        self.greeted.set()

    def _end(self, violation: ProtocolViolation | None) -> None:
        if not self.ended.done():
            if violation is None:
                self.ended.set_result(None)
            else:
                self.ended.set_exception(violation)
        self.greeted.set()
        if self._transport is not None:
            self._transport.abort()
