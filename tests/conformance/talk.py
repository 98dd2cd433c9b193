"""A talk with one server: requests are sent, and answers recorded in the order in which the flow asks."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import uuid
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from .replies import Event, Reply, Request, events, headers_of, plain_reply, stream_body

_NOT_GIVEN = object()
STREAM_LIMIT_S = 60.0


class Talk:
    """What a flow speaks through; the same flow is run once for each server, and the recordings are compared."""

    def __init__(self, http: aiohttp.ClientSession, flow: str, dialect: str) -> None:
        self._http = http
        self.topic = flow
        """What is being talked about: the flow's name, or that of a part of it."""
        self.dialect = dialect
        self._recorded: list[tuple[Request, Reply] | None] = []
        self._ids: dict[str, str] = {}

    @property
    def recorded(self) -> list[tuple[Request, Reply]]:
        """What was asked and answered, in order."""
        return [entry for entry in self._recorded if entry is not None]

    def sid(self, name: str = "sid") -> str:
        """Return a session id, the same for the same name; in recordings it reads ``<name>``."""
        if name not in self._ids:
            self._ids[name] = str(uuid.uuid4())
        return self._ids[name]

    # --- Requests ---------------------------------------------------------------------------------------------------

    async def get(self, path: str, sid: str | None = None, **headers: str) -> Reply:
        """GET, without following redirects."""
        return await self.send("GET", path, sid=sid, headers=headers)

    async def post(self, path: str, json: Any = _NOT_GIVEN, sid: str | None = None, **headers: str) -> Reply:
        """POST a JSON body, or none."""
        return await self.send("POST", path, json=json, sid=sid, headers=headers)

    async def send(
        self,
        method: str,
        path: str,
        *,
        json: Any = _NOT_GIVEN,
        raw: bytes | None = None,
        sid: str | None = None,
        headers: dict[str, str] | None = None,
        follow: bool = False,
        record: bool = True,
    ) -> Reply:
        """Send one request, read the whole answer and record it."""
        async with self._recording(method, path, json, raw, sid, headers, record=record) as (arguments, done):
            async with self._http.request(method, path, allow_redirects=follow, **arguments) as response:
                if response.content_type == "text/event-stream":
                    stream = Stream(response)
                    await stream.finish()
                    reply = stream.reply()
                else:
                    reply = await plain_reply(response)
            done(reply)
        return reply

    async def create(
        self, env_name: str, task_spec: dict[str, Any] | None = None, *, sid: str = "sid", **fields: Any
    ) -> Reply:
        """Create a session on a task."""
        headers = fields.pop("headers", {})
        return await self.post(
            "/create", {"env_name": env_name, "task_spec": task_spec or {}, **fields}, sid=sid, **headers
        )

    async def delete(self, sid: str = "sid") -> Reply:
        """Delete a session."""
        return await self.post("/delete", sid=sid)

    async def call(self, env: str, name: str, tool_input: Any = None, *, sid: str | None = "sid", **more: Any) -> Reply:
        """Call a tool and wait for the end of the stream."""
        limit_s = more.pop("limit_s", STREAM_LIMIT_S)
        async with self.calling(env, name, tool_input, sid=sid, **more) as stream:
            await stream.finish(limit_s)
        return stream.reply()

    @asynccontextmanager
    async def calling(
        self, env: str, name: str, tool_input: Any = None, *, sid: str | None = "sid", path: str = "call", **more: Any
    ) -> AsyncIterator[Stream]:
        """Call a tool; the block begins when the call has an id. What has been read when the block ends is recorded."""
        body = {"name": name, "input": {} if tool_input is None else tool_input, **more}
        async with self._recording("POST", f"/{env}/{path}", body, None, sid, None) as (arguments, done):
            async with self._http.post(f"/{env}/{path}", **arguments) as response:
                stream = Stream(response)
                await stream.start()
                yield stream
            done(stream.reply())

    async def together(self, requests: Iterable[Any]) -> list[Reply]:
        """Send unrecorded requests at once and record what came back, the lowest status first: which one wins is luck."""
        replies = sorted(await asyncio.gather(*requests), key=lambda reply: reply.status)
        for number, reply in enumerate(replies):
            self._recorded.append((Request(self.topic, "together", f"#{number}"), self._without_ids(reply)))
        return replies

    # --- Recording --------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _recording(
        self,
        method: str,
        path: str,
        body: Any,
        raw: bytes | None,
        sid: str | None,
        headers: dict[str, str] | None,
        *,
        record: bool = True,
    ) -> AsyncIterator[Any]:
        sent = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
        shown = dict(sent)
        if sid is not None:
            sent["X-Session-ID"], shown["X-Session-ID"] = self.sid(sid), f"<{sid}>"
        arguments: dict[str, Any] = {"headers": sent}
        if raw is not None:
            arguments["data"] = io.BytesIO(raw)
            arguments["headers"] = {"Content-Type": "application/json", **sent}
        elif body is not _NOT_GIVEN:
            arguments["json"] = body
        shown_body = raw.decode(errors="replace")[:200] if raw is not None else None if body is _NOT_GIVEN else body
        request = Request(self.topic, method, self._without_ids_in(path), self._without_ids_in(shown_body), shown)
        place = len(self._recorded)
        if record:
            self._recorded.append(None)

        def done(reply: Reply) -> None:
            if record:
                self._recorded[place] = (request, self._without_ids(reply))

        yield arguments, done

    def _without_ids(self, reply: Reply) -> Reply:
        return Reply(reply.status, self._without_ids_in(reply.headers), self._without_ids_in(reply.body))

    def _without_ids_in(self, value: Any) -> Any:
        if not self._ids or value is None:
            return value
        text = json.dumps(value)
        for name, sid in self._ids.items():
            text = text.replace(sid, f"<{name}>")
        return json.loads(text)

    def remember(self, name: str, value: str) -> None:
        """Let a value that differs from run to run read ``<name>`` in recordings."""
        self._ids[name] = value


class Stream:
    """The answer to a call, while it comes."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._found: list[Event] = []
        self._events = events(response)
        self._finished = False
        self._plain: Reply | None = None
        self.call_id = ""

    async def start(self) -> None:
        """Read the first event, or all of an answer that is no stream."""
        if self._response.content_type != "text/event-stream":
            self._plain = await plain_reply(self._response)
            return
        async for event in self._events:
            self._found.append(event)
            if event.name == "task_id":
                self.call_id = event.data
            break

    async def finish(self, limit_s: float = STREAM_LIMIT_S) -> None:
        """Read to the end, but no longer than ``limit_s``."""
        if self._plain is not None:
            return
        try:
            async with asyncio.timeout(limit_s):
                async for event in self._events:
                    self._found.append(event)
            self._finished = True
        except (TimeoutError, aiohttp.ClientPayloadError):
            self._response.close()

    def cut(self) -> None:
        """Close the connection in the middle."""
        self._response.close()
        self._finished = True

    def reply(self) -> Reply:
        """Return what was read."""
        if self._plain is not None:
            return self._plain
        body = stream_body(self._found, finished=self._finished)
        return Reply(self._response.status, headers_of(self._response), body)


def secrets_header(secrets: dict[str, str]) -> str:
    """Return ``X-Secrets`` as both clients write it."""
    return base64.b64encode(json.dumps({name: {"value": value} for name, value in secrets.items()}).encode()).decode()
