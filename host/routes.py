"""One short handler for each endpoint of ORS: parse, ask, answer. Errors are raised, and become responses in ``app.py``.

Which environment a request means (``compat.md``): on the routes of a session, the session's own; elsewhere the path's, else
the header ``X-Deployment: owner/name``, else the body's ``env_name``, else the default.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from pydantic_core import to_json

from host import __version__, parsing, sse
from host.calls import Outcome, ToolCall, UnknownCall
from host.catalog import Catalog, Environment
from host.errors import Reason, SessionEnded
from host.session import Session, SessionSpec
from host.sessions import Sessions
from sandbox_runtime.messages import (
    CreateSession,
    GetTask,
    GetTaskRange,
    ListTasks,
    NumTasks,
)
from sandbox_runtime.messages import (
    ToolCall as CallBody,
)

PING_S = 10.0
"""Between comments on a silent stream; clients give a stream up after 30 s without a byte."""

_WRITE_BYTES = 256 * 1024
_WRITE_S = 60.0
_STREAM_HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "Connection": "keep-alive",
    "X-Accel-Buffering": "no",
}


@dataclass(frozen=True)
class Routes:
    """The handlers, over what they ask."""

    catalog: Catalog
    sessions: Sessions

    def table(self) -> Iterator[web.RouteDef]:
        """Yield all routes. Those of an environment are there with its name in front, and bare."""
        yield web.get("/health", self.health)
        yield web.get("/ready", self.ready)
        yield web.get("/version", self.version)
        yield web.get("/list_environments", self.list_environments)
        yield web.post("/create_session", self.create_session)
        yield web.post("/create", self.create)
        yield web.post("/delete", self.delete)
        yield web.post("/delete_session", self.delete)
        yield web.post("/ping", self.ping)
        yield web.get("/v1/environments/{owner:[^/]*}/{name}/required-secrets", self.required_secrets)
        for prefix in ("", "/{env}"):
            yield web.get(f"{prefix}/tools", self.tools)
            yield web.get(f"{prefix}/splits", self.splits)
            yield web.post(f"{prefix}/tasks", self.tasks)
            yield web.post(f"{prefix}/num_tasks", self.num_tasks)
            for name in ("task", "get_task"):  # one page of the documents uses the second name
                yield web.post(f"{prefix}/{name}", self.task)
                yield web.post(f"{prefix}/{name}_range", self.task_range)
            yield web.get(f"{prefix}/task_tools", self.task_tools)
            yield web.get(f"{prefix}/prompt", self.prompt)
            yield web.post(f"{prefix}/call", self.call)

    # --- The server -------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        if (problem := self.sessions.why_not_ready()) is not None:
            raise problem
        return web.json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "build_sha": None})

    async def list_environments(self, request: web.Request) -> web.Response:
        return web.json_response(self.catalog.names)

    async def required_secrets(self, request: web.Request) -> web.Response:
        self.catalog.get(request.match_info["name"])
        return web.json_response({"secrets": []})

    # --- Discovery --------------------------------------------------------------------------------------------------

    async def tools(self, request: web.Request) -> web.Response:
        return _json(self._environment(request).tools.model_dump_json())

    async def splits(self, request: web.Request) -> web.Response:
        return web.json_response([split.model_dump() for split in self._environment(request).splits])

    async def tasks(self, request: web.Request) -> web.Response:
        environment = self._environment(request)
        body = await parsing.body(request, ListTasks)
        return _answer(request, environment, "tasks", await environment.tasks(body.split))

    async def num_tasks(self, request: web.Request) -> web.Response:
        environment = self._environment(request)
        body = await parsing.body(request, NumTasks)
        return web.json_response({"num_tasks": await environment.num_tasks(body.split)})

    async def task(self, request: web.Request) -> web.Response:
        environment = self._environment(request)
        body = await parsing.body(request, GetTask)
        return _answer(request, environment, "task", to_json(await environment.task(body.split, body.index)))

    async def task_range(self, request: web.Request) -> web.Response:
        environment = self._environment(request)
        body = await parsing.body(request, GetTaskRange)
        tasks = await environment.task_range(body.split, body.start, body.stop)
        return _answer(request, environment, "tasks", tasks)

    # --- Sessions ---------------------------------------------------------------------------------------------------

    async def create_session(self, request: web.Request) -> web.StreamResponse:
        sid = str(uuid.uuid4())
        if "text/event-stream" not in request.headers.get("Accept", ""):
            return web.json_response({"sid": sid})
        async with _stream(request) as stream:
            await stream.write(sse.event("task_id", sid) + sse.event("end", ""))
        return stream

    async def create(self, request: web.Request) -> web.Response:
        sid = parsing.session_id(request)
        body = await parsing.body(request, CreateSession)
        secrets = {**(body.secrets or {}), **parsing.secrets_header(request)}
        self.sessions.check_free(sid)
        environment = self._environment(request, body.env_name)
        task_spec = body.task_spec
        if task_spec is None:
            assert body.split is not None and body.index is not None
            task_spec = await environment.task(body.split, body.index)
        await self.sessions.create(
            SessionSpec(
                sid=sid,
                environment=environment.runtime_name,
                image=environment.image,
                task_spec=task_spec,
                secrets=secrets,
                toolset_name=body.toolset_name,
            )
        )
        return web.json_response({"sid": sid})

    async def delete(self, request: web.Request) -> web.Response:
        sid = parsing.session_id(request)
        await self.sessions.delete(sid)
        return web.json_response({"sid": sid})

    async def ping(self, request: web.Request) -> web.Response:
        async with self._session(request):
            return web.json_response({"status": "ok"})

    # --- An episode -------------------------------------------------------------------------------------------------

    async def task_tools(self, request: web.Request) -> web.Response:
        async with self._session(request) as session:
            return _json(await session.task_tools())

    async def prompt(self, request: web.Request) -> web.Response:
        async with self._session(request) as session:
            return _json(await session.prompt())

    async def call(self, request: web.Request) -> web.StreamResponse:
        sid = parsing.session_id(request)
        body = await parsing.body(request, CallBody)
        call_id = parsing.call_id(body.task_id)
        try:
            session = self.sessions.get(sid)
            async with session.request():
                call = session.call(body.name, body.input, call_id)
                return await _stream_call(request, call)
        except UnknownCall:
            return await _stream_error(request, "unknown task_id")
        except SessionEnded as exc:
            if exc.failure.reason in (Reason.SETUP_FAILED, Reason.SETUP_TIMEOUT):
                return await _stream_error(request, str(exc))
            raise

    # --- Common -----------------------------------------------------------------------------------------------------

    def _environment(self, request: web.Request, env_name: str | None = None) -> Environment:
        if (name := request.match_info.get("env")) is not None:
            if environment := self.catalog.find(name):
                return environment
            raise web.HTTPNotFound  # an unknown first segment: answered by the redirect to the default environment
        deployment = request.headers.get("X-Deployment", "").strip()
        for candidate in (deployment, deployment.rpartition("/")[2]):
            if environment := self.catalog.find(candidate):
                return environment
        return self.catalog.get(env_name) if env_name is not None else self.catalog.default

    @asynccontextmanager
    async def _session(self, request: web.Request) -> AsyncIterator[Session]:
        session = self.sessions.get(parsing.session_id(request))
        async with session.request():
            yield session


def _json(text: str | bytes) -> web.Response:
    raw = text if isinstance(text, bytes) else text.encode()
    return web.Response(body=raw, content_type="application/json", charset="utf-8")


def _answer(request: web.Request, environment: Environment, field: str, value: bytes) -> web.Response:
    """Answer a discovery question, with the environment's name as the client wrote it, which the newer client needs."""
    name = request.match_info.get("env", environment.name)
    return _json(b'{"%b":%b,"env_name":%b}' % (field.encode(), value, to_json(name)))


@asynccontextmanager
async def _stream(request: web.Request) -> AsyncIterator[web.StreamResponse]:
    """Open an event stream, and end it. A client that went away ends the block quietly: what it waited for goes on."""
    stream = web.StreamResponse(headers=_STREAM_HEADERS)
    try:
        await stream.prepare(request)
        yield stream
        await stream.write_eof()
    except ConnectionError:
        pass


async def _stream_call(request: web.Request, call: ToolCall) -> web.StreamResponse:
    async with _stream(request) as stream:
        await _write(stream, sse.event("task_id", call.id))
        while not call.done.is_set():
            try:
                async with asyncio.timeout(PING_S):
                    await call.done.wait()
            except TimeoutError:
                await _write(stream, sse.PING)
        assert call.outcome is not None
        await _write_outcome(request, stream, call.outcome)
    return stream


async def _stream_error(request: web.Request, text: str) -> web.StreamResponse:
    async with _stream(request) as stream:
        await _write(stream, sse.error(text))
    return stream


async def _write_outcome(request: web.Request, stream: web.StreamResponse, outcome: Outcome) -> None:
    match outcome.event:
        case "cut":
            if request.transport is not None:
                request.transport.abort()  # no orderly end: that would be an end to the client
            raise ConnectionAbortedError
        case "error":
            await _write(stream, sse.error(outcome.text))
        case "end":
            batch = bytearray()
            for piece in sse.result(outcome.text):
                batch += piece
                if len(batch) >= _WRITE_BYTES:
                    await _write(stream, bytes(batch))
                    batch.clear()
            await _write(stream, bytes(batch))


async def _write(stream: web.StreamResponse, data: bytes) -> None:
    """Write, with a deadline: a client that no longer reads must not keep its session from being idle for ever.

    Raises:
        ConnectionError: the client is gone, or as good as gone.
    """
    try:
        async with asyncio.timeout(_WRITE_S):
            await stream.write(data)
    except TimeoutError:
        raise ConnectionAbortedError from None
