"""The protocol from a client's side, strictly: what is not as it should be is an error, not something to ride out."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import aiohttp
from pydantic import TypeAdapter, ValidationError

from sandbox_runtime.messages import (
    Block,
    ListToolsOutput,
    RunToolError,
    RunToolOutput,
    RunToolSuccess,
    Split,
    ToolSpec,
    describe,
)

T = TypeVar("T")

_TIMEOUT_S = 600.0
_LINE_BYTES = 1 << 20
_BLOCKS = TypeAdapter(list[Block])
_SPLITS = TypeAdapter(list[Split])
_OUTPUT: TypeAdapter[RunToolSuccess | RunToolError] = TypeAdapter(RunToolOutput)


class Refused(Exception):
    """The server answered with an error. ``reason`` is its word for it, if it has one."""

    def __init__(self, status: int, reason: str, detail: str) -> None:
        super().__init__(f"{status} {reason}: {detail}")
        self.status = status
        self.reason = reason


class NotProtocol(Exception):
    """What answers doesn't speak the protocol, or breaks it; or nobody answers."""


@dataclass(frozen=True)
class Reply:
    """How a call ended: with ``output``, or with the ``error`` of a tool that raised or a session that is gone.

    ``data`` is what the stream said, as it said it.
    """

    call_id: str
    data: str
    output: RunToolSuccess | RunToolError | None
    error: str | None


class Server:
    """A server of the protocol. Opened with ``async with Server.open(url)``."""

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    @classmethod
    @asynccontextmanager
    async def open(cls, url: str, api_key: str | None = None) -> AsyncIterator[Server]:
        """Be ready to ask the server at ``url``."""
        headers = {"X-API-Key": api_key} if api_key else {}
        timeout = aiohttp.ClientTimeout(total=_TIMEOUT_S)
        async with aiohttp.ClientSession(url, headers=headers, timeout=timeout, read_bufsize=_LINE_BYTES) as http:
            yield cls(http)

    async def environments(self) -> list[str]:
        """Return the names of the environments. Raises Refused, NotProtocol, as all of these do."""
        return [str(name) for name in await self.ask("GET", "/list_environments")]

    async def splits(self, environment: str) -> list[Split]:
        """Return an environment's splits."""
        return _checked(_SPLITS, await self.ask("GET", f"/{environment}/splits"), "the splits")

    async def num_tasks(self, environment: str, split: str) -> int:
        """Return how many tasks a split has."""
        return int((await self.ask("POST", f"/{environment}/num_tasks", {"split": split}))["num_tasks"])

    async def task(self, environment: str, split: str, index: int) -> dict[str, Any]:
        """Return one task."""
        answer = await self.ask("POST", f"/{environment}/task", {"split": split, "index": index})
        return dict(answer["task"])

    async def create(self, environment: str, task: Mapping[str, Any], secrets: Mapping[str, str]) -> Session:
        """Create a session for a task."""
        session = Session(self, environment, str(uuid.uuid4()))
        body = {"env_name": environment, "task_spec": task, "secrets": dict(secrets)}
        await self.ask("POST", "/create", body, sid=session.sid)
        return session

    async def ask(self, method: str, path: str, body: Any = None, *, sid: str | None = None) -> Any:
        """Ask, and return the JSON of the answer."""
        headers = {"X-Session-ID": sid} if sid else {}
        try:
            async with self._http.request(method, path, json=body, headers=headers) as response:
                return await _json(response)
        except (aiohttp.ClientError, OSError) as exc:
            raise NotProtocol(f"no answer to {method} {path}: {exc or type(exc).__name__}") from exc

    @asynccontextmanager
    async def events(self, path: str, body: Any, sid: str) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
        """Post, and have the events of the answer as they come."""
        headers = {"X-Session-ID": sid, "Accept": "text/event-stream"}
        try:
            async with self._http.post(path, json=body, headers=headers) as response:
                if response.status != 200:
                    await _json(response)
                yield _events(response)
        except (aiohttp.ClientError, OSError) as exc:
            raise NotProtocol(f"the stream of {path} broke: {exc or type(exc).__name__}") from exc


@dataclass(frozen=True)
class Session:
    """One session on a server."""

    server: Server
    environment: str
    sid: str

    async def prompt(self) -> list[Block]:
        """Return the prompt."""
        return _checked(_BLOCKS, await self._ask("GET", f"/{self.environment}/prompt"), "the prompt")

    async def tools(self) -> list[ToolSpec]:
        """Return the tools that this session has."""
        answer = await self._ask("GET", f"/{self.environment}/task_tools")
        return list(_checked(TypeAdapter(ListToolsOutput), answer, "the tools").tools)

    async def ping(self) -> None:
        """Say that somebody is there."""
        await self._ask("POST", "/ping")

    async def delete(self) -> None:
        """End it; fine if it has ended."""
        await self._ask("POST", "/delete")

    async def call(self, name: str, tool_input: Mapping[str, Any], call_id: str | None = None) -> Reply:
        """Call a tool and wait for its result; with ``call_id``, for that of a call made before."""
        async with self._calling(name, tool_input, call_id) as events:
            call_id, parts = "", []
            async for event, data in events:
                if event == "task_id":
                    call_id = data
                    continue
                parts.append(data)
                if event == "end":
                    whole = "".join(parts)
                    try:
                        return Reply(call_id, whole, _checked(_OUTPUT, json.loads(whole), "the result"), None)
                    except ValueError as exc:
                        raise NotProtocol(f"the result is not JSON: {exc}") from exc
                if event == "error":
                    return Reply(call_id, data, None, data)
        raise NotProtocol("the stream ended without a result")

    async def begin(self, name: str, tool_input: Mapping[str, Any]) -> str:
        """Call a tool and hang up as soon as it has begun; return the call's id."""
        async with self._calling(name, tool_input, None) as events:
            async for event, data in events:
                if event == "task_id":
                    return data
        raise NotProtocol("the stream of a call doesn't begin with its task_id")

    @asynccontextmanager
    async def _calling(
        self, name: str, tool_input: Mapping[str, Any], call_id: str | None
    ) -> AsyncIterator[AsyncIterator[tuple[str, str]]]:
        body = {"name": name, "input": dict(tool_input)} | ({"task_id": call_id} if call_id else {})
        async with self.server.events(f"/{self.environment}/call", body, self.sid) as events:
            yield events

    async def _ask(self, method: str, path: str) -> Any:
        return await self.server.ask(method, path, sid=self.sid)


async def _json(response: aiohttp.ClientResponse) -> Any:
    try:
        value = json.loads(await response.read())
    except ValueError:
        raise NotProtocol(f"{response.url.path} is not answered with JSON (status {response.status})") from None
    if response.status != 200:
        body = value if isinstance(value, dict) else {}
        raise Refused(response.status, str(body.get("reason", "error")), str(body.get("detail", value)))
    return value


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str]]:
    name, lines = "", list[str]()
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        field, _, value = line.partition(": ")
        match field:
            case "event":
                name = value
            case "data":
                lines.append(value)
            case "" if not line and name:
                yield name, "\n".join(lines)
                name, lines = "", []


def _checked(adapter: TypeAdapter[T], value: Any, what: str) -> T:
    try:
        return adapter.validate_python(value)
    except ValidationError as exc:
        raise NotProtocol(f"{what} is not as the protocol has it: {describe(exc)}") from None
