"""One connection to a host: frames in, messages up; answers down, frames out.

Bytes are decoded where they arrive and answers are written where they are made: there is no task, and nothing waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from pydantic import ValidationError

from . import frames, messages
from .answering import Answer
from .jobs import Job
from .messages import Hello, Request, Response, Welcome
from .output import shorten

HELLO_ID = 0
_RECEIVE_BYTES = 1 << 16


class ProtocolViolation(Exception):
    """The host said what it may not."""


class Link(asyncio.BufferedProtocol):
    """The greeting, the requests that came on a connection, and the answers that are to go.

    ``received`` gets what comes after the greeting. ``greeted`` is set when the host has answered to hello (``welcome`` says
    what), or the connection has ended. ``ended`` is done when it has, by whomever; a ``ProtocolViolation`` if that was because
    the host broke the protocol.
    """

    def __init__(self, hello: Hello, received: Callable[[Request | Response, Link], None]) -> None:
        self.asked: dict[int, Job] = {}
        self.welcome: Welcome | None = None
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
            assert self._transport is not None and self.welcome is not None
            self._transport.write(answer.frame(request_id, self.welcome.max_frame_bytes))

    def close(self) -> None:
        """Hang up, and forget what is owed: nobody is there to take it."""
        self._end(None)

    # What the event loop reports

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        transport.write(frames.encode_frame(messages.request(HELLO_ID, "hello", self._hello.model_dump())))

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for message in self._decoder.feed(self._buffer[:nbytes]):
                if self.ended.done():
                    return
                parsed = messages.parse_message(message)
                if self.welcome is None:
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
        try:
            self.welcome = Welcome.model_validate(message.result)
        except ValidationError as exc:
            raise ProtocolViolation(f"welcome: {messages.describe(exc)}") from exc
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
