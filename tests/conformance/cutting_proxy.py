"""A TCP proxy that cuts connections at chosen moments of a tool call, as bad networks do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from urllib.parse import urlsplit


class Cut(Enum):
    """When a connection on which a tool is called is cut."""

    IN_THE_REQUEST = auto()  # the server gets half of it
    AFTER_THE_ID = auto()  # the client has the call's id, and no answer
    IN_THE_RESULT = auto()  # the client has the call's id, and a part of the answer


@dataclass
class CuttingProxy:
    """Passes everything on, but for one call for each of ``cuts``, in order; ``made`` are those that were made."""

    server_port: int
    url: str = ""
    cuts: list[Cut] = field(default_factory=list)
    made: list[Cut] = field(default_factory=list)

    async def serve(self, client_reader: asyncio.StreamReader, client_writer: asyncio.StreamWriter) -> None:
        """Serve one connection of a client."""
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self.server_port)
        scissors = _Scissors(self.cuts, self.made)
        pumps = [
            asyncio.ensure_future(_pump(client_reader, server_writer, scissors.request)),
            asyncio.ensure_future(_pump(server_reader, client_writer, scissors.answer)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            client_writer.transport.abort()
            server_writer.transport.abort()
            await asyncio.gather(*pumps, return_exceptions=True)


class _Scissors:
    """Looks at what passes on one connection, and says where to cut."""

    def __init__(self, cuts: list[Cut], made: list[Cut]) -> None:
        self._cuts = cuts
        self._made = made
        self._cut: Cut | None = None
        self._answer = b""

    def request(self, data: bytes) -> int | None:
        """Return how much of it may pass before the cut, or None for no cut."""
        if self._cuts and data.startswith(b"POST ") and b"/call " in data.partition(b"\r\n")[0]:
            self._cut = self._cuts.pop(0)
            if self._cut is Cut.IN_THE_REQUEST:
                self._made.append(self._cut)
                return len(data) // 2
        return None

    def answer(self, data: bytes) -> int | None:
        """As ``request``."""
        if self._cut is None:
            return None
        passed = len(self._answer)
        self._answer += data
        if self._cut is Cut.AFTER_THE_ID:
            _, found, rest = self._answer.partition(b"event: task_id")
            end = len(self._answer) - len(rest) + rest.find(b"\r\n\r\n") + 4 if b"\r\n\r\n" in rest else 0
        else:
            before, found, rest = self._answer.partition(b"event: chunk")
            end = len(before) + 1000 if len(rest) > 1000 else 0
        if not (found and end):
            return None
        self._made.append(self._cut)
        return max(end - passed, 0)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut_at: Callable[[bytes], int | None]
) -> None:
    while data := await reader.read(65536):
        cut = cut_at(data)
        writer.write(data if cut is None else data[:cut])
        await writer.drain()
        if cut is not None:
            return


@asynccontextmanager
async def cutting_proxy(server_url: str) -> AsyncIterator[CuttingProxy]:
    """Open a proxy in front of a server."""
    proxy = CuttingProxy(urlsplit(server_url).port or 80)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    async with server:
        proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield proxy
