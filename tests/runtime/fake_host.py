"""A host for tests: binds the socket that a worker dials, and asks what a test wants asked."""

from __future__ import annotations

import asyncio
import itertools
import socket
from pathlib import Path
from typing import Any

from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Hello, Request, Response

TOKEN = "token-of-this-test"


class HostLink:
    """One accepted connection of a worker."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = frames.FrameDecoder()
        self._waiting: list[dict[str, Any]] = []
        self._ids = itertools.count(1)

    async def receive(self) -> Request | Response:
        """Return the worker's next message."""
        while not self._waiting:
            data = await self._reader.read(1 << 16)
            if not data:
                raise EOFError("the worker hung up")
            self._waiting += self._decoder.feed(data)
        return messages.parse_message(self._waiting.pop(0))

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._writer.write(data)

    def send(self, message: dict[str, Any]) -> None:
        """Send a message."""
        self.send_bytes(frames.encode_frame(message))

    def ask(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        request_id = next(self._ids)
        if method == "call":
            params.setdefault("call_id", f"call-{request_id}")
        self.send(messages.request(request_id, method, params))
        return request_id

    def cancel(self, request_id: int) -> None:
        """Cancel a request."""
        self.send(messages.notification("cancel", {"id": request_id}))

    async def answer(self) -> Response:
        """Return the worker's next message, which must be an answer."""
        message = await self.receive()
        assert isinstance(message, Response)
        return message

    async def request(self, method: str, **params: Any) -> Any:
        """Ask, and return the result."""
        request_id = self.ask(method, **params)
        answer = await self.answer()
        assert answer.id == request_id
        assert answer.error is None, answer.error
        return answer.result

    async def fault(self, method: str, **params: Any) -> tuple[str, str]:
        """Ask, and return the fault and the message."""
        self.ask(method, **params)
        answer = await self.answer()
        assert answer.error is not None, answer.result
        return answer.error.data.fault.value, answer.error.message

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()


class FakeHost:
    """Listens in ``directory``; close and open it again to play a host that restarts."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._links: asyncio.Queue[HostLink] = asyncio.Queue()
        self._open: list[HostLink] = []
        self._server: asyncio.Server | None = None

    async def listen(self) -> None:
        """Write the token and bind the socket."""
        (self.directory / "token").write_text(TOKEN + "\n")
        path = self.directory / "host.sock"
        path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._connected, sock=_bound(path))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = HostLink(reader, writer)
        self._open.append(link)
        await self._links.put(link)

    async def accept(self) -> HostLink:
        """Return the next connection, nothing said yet."""
        return await self._links.get()

    async def welcome(self, max_frame_bytes: int = frames.DEFAULT_MAX_FRAME_BYTES) -> tuple[HostLink, Hello]:
        """Return the next connection after a proper greeting."""
        link = await self.accept()
        message = await link.receive()
        assert isinstance(message, Request)
        assert message.method == "hello"
        assert message.id is not None
        link.send(messages.result(message.id, messages.Welcome(max_frame_bytes=max_frame_bytes).model_dump()))
        return link, Hello.model_validate(message.params)

    def close(self) -> None:
        """Stop listening and hang up on everyone."""
        if self._server is not None:
            self._server.close()
        for link in self._open:
            link.close()
        self._open.clear()


def _bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(path))
    return sock
