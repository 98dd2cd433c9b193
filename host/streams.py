"""Event streams to clients: opened, kept alive and ended the way both public clients need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from aiohttp import web

from host import sse
from host.calls import Outcome, ToolCall

PING_S = 10.0
"""Between comments on a silent stream; clients give a stream up after 30 s without a byte."""

_AT_ONCE_S = 0.02
"""A call that ends within this time is answered in one piece. A client can come back to a call from when it has the call's id,
so the id must not wait long; but each piece costs as much as the rest of a small call."""

_ONE_PIECE_CHARS = 64 * 1024
"""What the kernel takes at once. What is longer is written bit by bit, each with a deadline, for clients that don't read."""

_WRITE_BYTES = 256 * 1024
_WRITE_S = 60.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}


@asynccontextmanager
async def _open_stream(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Open an event stream, and end it. A client that went away ends the block quietly: what it waited for goes on."""
    stream = web.StreamResponse(headers=_HEADERS)
    try:
        await stream.prepare(request)
        yield stream
        await stream.write_eof()
    except ConnectionError:
        pass


async def answer_call(request: web.Request, call: ToolCall) -> web.StreamResponse:
    """Answer with a call's id and its outcome; with its id at once, if the outcome takes longer than a moment."""
    outcome = await call.wait(_AT_ONCE_S)
    if outcome is not None and outcome.event != "cut" and len(outcome.text) <= _ONE_PIECE_CHARS:
        return _events(sse.event("task_id", call.id), *_pieces(outcome))
    async with _open_stream(request) as stream:
        await _write(request, stream, sse.event("task_id", call.id))
        while (outcome := await call.wait(PING_S)) is None:
            await _write(request, stream, sse.PING)
        if outcome.event == "cut":
            _abort(request)  # no orderly end: that would be an end to the client
            raise ConnectionAbortedError
        await _write_all(request, stream, _pieces(outcome))
    return stream


def answer_error(text: str) -> web.Response:
    """Answer with an error and nothing else."""
    return _events(sse.error(text))


def answer_session_id(sid: str) -> web.Response:
    """Answer with a session's id, as a stream."""
    return _events(sse.event("task_id", sid), sse.event("end", ""))


def _events(*events: bytes) -> web.Response:
    return web.Response(body=b"".join(events), headers=_HEADERS)


def _pieces(outcome: Outcome) -> Iterator[bytes]:
    return iter((sse.error(outcome.text),)) if outcome.event == "error" else sse.result(outcome.text)


async def _write_all(request: web.Request, stream: web.StreamResponse, pieces: Iterator[bytes]) -> None:
    batch = bytearray()
    for piece in pieces:
        batch += piece
        if len(batch) >= _WRITE_BYTES:
            await _write(request, stream, bytes(batch))
            batch.clear()
    await _write(request, stream, bytes(batch))


async def _write(request: web.Request, stream: web.StreamResponse, data: bytes) -> None:
    """Write, with a deadline: a client that no longer reads must not keep its session from being idle for ever.

    Raises:
        ConnectionError: the client is gone, or as good as gone.
    """
    try:
        async with asyncio.timeout(_WRITE_S):
            await stream.write(data)
    except TimeoutError:
        _abort(request)  # else the server waits for it to take the rest, for ever
        raise ConnectionAbortedError from None


def _abort(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()
