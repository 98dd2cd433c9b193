"""HTTP/1.1 over one connection, as cheaply as Python can: what is measured is the server, not its client.

A request is bytes made beforehand; an answer is looked at only for where it ends, until somebody asks for more. Both servers
of a comparison are asked by this client. What it costs is in the results.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import Mapping
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"
"""Nothing in an event stream looks like it: each of its lines holds a colon."""


class RequestFailed(Exception):
    """A server's answer is not the one that was to be had; the message says what it was."""


class Response:
    """One answer: its status, and its body, chunked as it came."""

    def __init__(self, raw: bytes, body_start: int, *, chunked: bool) -> None:
        self.status = int(raw[9:12])
        self.raw = raw
        self._body_start = body_start
        self._chunked = chunked

    @property
    def body(self) -> bytes:
        """The body, put together."""
        if not self._chunked:
            return self.raw[self._body_start :]
        parts: list[bytes] = []
        at = self._body_start
        while True:
            line_end = self.raw.index(b"\r\n", at)
            size = int(self.raw[at:line_end].split(b";")[0], 16)
            if size == 0:
                return b"".join(parts)
            parts.append(self.raw[line_end + 2 : line_end + 2 + size])
            at = line_end + 2 + size + 2

    def json(self) -> Any:
        """The body of a successful answer.

        Raises:
            RequestFailed: it was no success.
        """
        if self.status != 200:
            raise RequestFailed(f"status {self.status}: {self.body[:300].decode(errors='replace')}")
        return json.loads(self.body)


class Connection(asyncio.Protocol):
    """One keep-alive connection; one request at a time. Open with ``connect``; opened again if the server closes it at rest."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._transport: asyncio.Transport | None = None
        self.closed = asyncio.Event()
        self._answer: asyncio.Future[Response] | None = None
        self._buffer = bytearray()
        self._body_start = 0
        self._end: int | None = None  # where the answer ends, once that is known; None: at the last chunk

    @classmethod
    async def connect(cls, port: int) -> Connection:
        """Connect to a port of this machine."""
        connection = cls(port)
        await connection._open()
        return connection

    async def _open(self) -> None:
        await asyncio.get_running_loop().create_connection(lambda: self, "127.0.0.1", self._port)

    async def ask(self, request: bytes) -> Response:
        """Send a request and return its answer.

        Raises:
            RequestFailed: the connection ended first.
            OSError: it had ended before, and there is no new one to be had.
        """
        if self._transport is None or self._transport.is_closing():
            await self.closed.wait()
            await self._open()
        assert self._transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        """Hang up."""
        if self._transport is not None:
            self._transport.close()

    # asyncio calls these

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.closed.clear()
        self._buffer.clear()
        self._body_start, self._end = 0, None
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        if not self._body_start:
            head_end = buffer.find(b"\r\n\r\n")
            if head_end < 0:
                return
            self._body_start = head_end + 4
            head = bytes(buffer[: head_end + 2])
            if length := _LENGTH.search(head):
                self._end = self._body_start + int(length[1])
            elif not _CHUNKED.search(head):
                self._fail(f"an answer whose end can't be told: {head!r}")
                return
        if self._end is None:
            if buffer.endswith(_END_OF_CHUNKS):
                self._finish(chunked=True)
        elif len(buffer) >= self._end:
            self._finish(chunked=False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._fail(f"the connection ended before the answer did ({exc or 'closed'})")

    def _finish(self, *, chunked: bool) -> None:
        response = Response(bytes(self._buffer), self._body_start, chunked=chunked)
        self._buffer.clear()
        self._body_start, self._end = 0, None
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(response)

    def _fail(self, words: str) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(RequestFailed(words))
        self.close()


def request_bytes(method: str, path: str, headers: Mapping[str, str], body: Any = None) -> bytes:
    """Return a request as it goes over the wire; ``body`` is sent as JSON unless it is None."""
    content = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    if content:
        lines.append("Content-Type: application/json")
    if content or method == "POST":
        lines.append(f"Content-Length: {len(content)}")
    return "\r\n".join([*lines, "", ""]).encode() + content


def result_of(response: Response) -> dict[str, Any]:
    """Return what the event stream of a tool call says the call came to.

    Raises:
        RequestFailed: the stream ended otherwise, or the call was no success.
    """
    if response.status != 200:
        raise RequestFailed(f"status {response.status}: {response.body[:300].decode(errors='replace')}")
    name, pieces = "", []
    for line in response.body.decode().split("\r\n"):
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: ") and name in ("chunk", "end", "error"):
            pieces.append(line.removeprefix("data: "))
    text = "".join(pieces)
    if name != "end":
        raise RequestFailed(f"the stream ended with {name or 'nothing'}: {text[:300]}")
    result = json.loads(text)
    if not (isinstance(result, dict) and result.get("ok")):
        raise RequestFailed(text[:300])
    return result


def looks_successful(response: Response) -> bool:
    """Look at a tool call's stream, without parsing it, for whether it ended well."""
    return response.status == 200 and b'"ok":true' in response.raw and b"event: end" in response.raw
