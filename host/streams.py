"""Event streams to clients: opened, kept alive and ended the way both public clients need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from host import sse
from host.calls import Outcome, ToolCall

PING_S = 10.0
"""Between comments on a silent stream; clients give a stream up after 30 s without a byte."""

_WRITE_BYTES = 256 * 1024
_WRITE_S = 60.0
_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}


@asynccontextmanager
async def open_stream(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Open an event stream, and end it. A client that went away ends the block quietly: what it waited for goes on."""
    stream = web.StreamResponse(headers=_HEADERS)
    try:
        await stream.prepare(request)
        yield stream
        await stream.write_eof()
    except ConnectionError:
        pass


async def stream_call(request: web.Request, call: ToolCall) -> web.StreamResponse:
    """Answer with a call's id, at once, and with its outcome, however long that takes."""
    async with open_stream(request) as stream:
        await _write(request, stream, sse.event("task_id", call.id))
        while not call.done.is_set():
            try:
                async with asyncio.timeout(PING_S):
                    await call.done.wait()
            except TimeoutError:
                await _write(request, stream, sse.PING)
        assert call.outcome is not None
        await _write_outcome(request, stream, call.outcome)
    return stream


async def stream_error(request: web.Request, text: str) -> web.StreamResponse:
    """Answer with an error and nothing else."""
    async with open_stream(request) as stream:
        await _write(request, stream, sse.error(text))
    return stream


async def _write_outcome(request: web.Request, stream: web.StreamResponse, outcome: Outcome) -> None:
    match outcome.event:
        case "cut":
            _abort(request)  # no orderly end: that would be an end to the client
            raise ConnectionAbortedError
        case "error":
            await _write(request, stream, sse.error(outcome.text))
        case "end":
            batch = bytearray()
            for piece in sse.result(outcome.text):
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
