"""The benchmark's client, against a server that sends what the test says, in pieces of any size."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bench.wire import Connection, RequestFailed, looks_successful, request_bytes, result_of

RESULT = {"ok": True, "output": {"blocks": [{"text": "first second", "type": "text"}]}}
TEXT = json.dumps(RESULT, separators=(",", ":"))


def chunked(*events: str) -> bytes:
    chunks = b"".join(f"{len(event.encode()):x}\r\n".encode() + event.encode() + b"\r\n" for event in events)
    return b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"


def event(name: str, data: str) -> str:
    return f"event: {name}\r\ndata: {data}\r\n\r\n"


STREAM = chunked(event("task_id", "abc"), event("chunk", TEXT[:20]), ": ping\r\n\r\n", event("end", TEXT[20:]))
PLAIN = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\ncontent-length: 9\r\n\r\n{"a": 10}'


@asynccontextmanager
async def answering(*answers: Sequence[bytes]) -> AsyncIterator[Connection]:
    """A connection to a server that gives one answer after the other, each in pieces, and then hangs up."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for pieces in answers:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        connection = await Connection.connect(server.sockets[0].getsockname()[1])
        try:
            yield connection
        finally:
            connection.close()


ASK = request_bytes("GET", "/", {})


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_answers_on_one_connection_in_pieces(size: int) -> None:
    answers = [[raw[at : at + size] for at in range(0, len(raw), size)] for raw in (STREAM, PLAIN, STREAM)]
    async with answering(*answers) as connection:
        stream, plain, again = [await connection.ask(ASK) for _ in answers]
    assert result_of(stream) == result_of(again) == RESULT
    assert looks_successful(stream)
    assert plain.json() == {"a": 10}


async def test_a_stream_that_ends_with_an_error() -> None:
    async with answering([chunked(event("task_id", "abc"), event("error", "it broke"))]) as connection:
        response = await connection.ask(ASK)
    assert not looks_successful(response)
    with pytest.raises(RequestFailed, match="error: it broke"):
        result_of(response)


async def test_a_call_that_is_no_success() -> None:
    async with answering([chunked(event("end", '{"ok":false,"error":"no such tool"}'))]) as connection:
        response = await connection.ask(ASK)
    assert not looks_successful(response)
    with pytest.raises(RequestFailed, match="no such tool"):
        result_of(response)


async def test_a_status_that_is_no_success() -> None:
    raw = b'HTTP/1.1 503 Service Unavailable\r\nContent-Length: 17\r\n\r\n{"detail":"full"}'
    async with answering([raw]) as connection:
        response = await connection.ask(ASK)
    with pytest.raises(RequestFailed, match="status 503.*full"):
        response.json()


@pytest.mark.parametrize("raw", [b"", STREAM[:40], PLAIN[:-1]])
async def test_a_server_that_hangs_up_too_early(raw: bytes) -> None:
    async with answering([raw]) as connection:
        with pytest.raises(RequestFailed, match="ended before the answer did"):
            await connection.ask(ASK)


async def test_a_connection_that_was_closed_at_rest_is_opened_again() -> None:
    async with answering([PLAIN]) as connection:
        for _ in range(3):
            assert (await connection.ask(ASK)).json() == {"a": 10}
            await connection.closed.wait()


def test_a_request() -> None:
    assert request_bytes("POST", "/create", {"X-Session-ID": "s"}, {"a": 1}) == (
        b"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Session-ID: s\r\n"
        b'Content-Type: application/json\r\nContent-Length: 7\r\n\r\n{"a":1}'
    )
    assert request_bytes("POST", "/ping", {}).endswith(b"\r\nContent-Length: 0\r\n\r\n")
