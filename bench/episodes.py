"""What a trainer does, on any ORS server of this machine: create a session, read its prompt, call tools, delete it."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Self

from bench.wire import Connection, RequestFailed, Response, looks_successful, request_bytes, result_of

SMALL_TEXT = "a few words"


@dataclass(frozen=True)
class Server:
    """An ORS server that runs: what tables call it, and where it listens."""

    name: str
    port: int
    environment: str = "bench"


class Session:
    """One session, with a connection of its own."""

    def __init__(self, server: Server, connection: Connection) -> None:
        self.connection = connection
        self.sid = str(uuid.uuid4())
        headers = {"X-Session-ID": self.sid, "Accept": "application/json"}
        streamed = {**headers, "Accept": "text/event-stream"}
        path = f"/{server.environment}"

        def call(name: str, **given: Any) -> bytes:
            return request_bytes("POST", f"{path}/call", streamed, {"name": name, "input": given})

        body = {"env_name": server.environment, "task_spec": {}}
        self._create = request_bytes("POST", "/create", headers, body)
        self._prompt = request_bytes("GET", f"{path}/prompt", headers)
        self._ping = request_bytes("POST", "/ping", headers)
        self._delete = request_bytes("POST", "/delete", headers)
        self.small_call = call("echo", text=SMALL_TEXT)
        self.large_call = call("large")
        self.command_call = call("command")

    @classmethod
    @asynccontextmanager
    async def unstarted(cls, server: Server) -> AsyncIterator[Self]:
        """Have a session that is yet to be created; it is deleted when the block is left."""
        connection = await Connection.connect(server.port)
        try:
            session = cls(server, connection)
            yield session
            await session.delete()
        finally:
            connection.close()

    @classmethod
    @asynccontextmanager
    async def open(cls, server: Server) -> AsyncIterator[Self]:
        """Have a session that is ready for calls; it is deleted when the block is left."""
        async with cls.unstarted(server) as session:
            await session.start()
            yield session

    async def start(self) -> None:
        """Create it and read its prompt.

        Raises:
            RequestFailed: one of the two was no success.
        """
        (await self.connection.ask(self._create)).json()
        (await self.connection.ask(self._prompt)).json()

    async def timed_start(self) -> float:
        """Create it and read its prompt; return how many seconds that took."""
        begin = time.perf_counter()
        await self.start()
        return time.perf_counter() - begin

    async def call(self, request: bytes) -> Response:
        """Make a tool call (``small_call``, ``large_call``, ``command_call``).

        Raises:
            RequestFailed: it was no success.
        """
        response = await self.connection.ask(request)
        if not looks_successful(response):
            result_of(response)  # which says what is wrong with it
            raise RequestFailed("a result without the usual words")
        return response

    async def ping(self) -> None:
        """Keep it alive."""
        (await self.connection.ask(self._ping)).json()

    async def delete(self) -> None:
        """End it."""
        (await self.connection.ask(self._delete)).json()

    async def check(self) -> None:
        """See that both tools return what they should, to the character.

        Raises:
            RequestFailed: they don't.
        """
        for request, size in ((self.small_call, len(SMALL_TEXT)), (self.large_call, 1_000_060)):
            result = result_of(await self.connection.ask(request))
            if (got := len(result["output"]["blocks"][0]["text"])) != size:
                raise RequestFailed(f"a result of {got} characters instead of {size}")
