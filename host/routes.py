"""One short handler for each endpoint of ORS: parse, ask, answer. Errors are raised, and become responses in ``app.py``.

Which environment a request means (``compat.md``): on the routes of a session, the session's own; elsewhere the path's, else
the header ``X-Deployment: owner/name``, else the body's ``env_name``, else the default.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from aiohttp import web
from pydantic_core import to_json

from host import __version__, parsing
from host.calls import ToolCall, UnknownCall
from host.catalog import Catalog, Environment
from host.errors import NotFound, Reason, SessionEnded
from host.origin import SessionSpec
from host.session import Session
from host.sessions import Sessions
from host.streams import answer_call, answer_error, answer_session_id
from sandbox_runtime.bodies import CreateSession, GetTask, GetTaskRange, ListTasks, NumTasks, ScoreGroup
from sandbox_runtime.bodies import ToolCall as CallBody


def endpoints() -> Iterator[tuple[str, str, str]]:
    """Yield method, path and handler's name. Those of an environment are there with its name in front, and bare."""
    yield "GET", "/health", "health"
    yield "GET", "/ready", "ready"
    yield "GET", "/version", "version"
    yield "GET", "/metrics", "metrics"
    yield "GET", "/list_environments", "list_environments"
    yield "POST", "/create_session", "create_session"
    yield "POST", "/create", "create"
    yield "POST", "/delete", "delete"
    yield "POST", "/delete_session", "delete"
    yield "POST", "/ping", "ping"
    yield "GET", "/v1/environments/{owner:[^/]*}/{name}/required-secrets", "required_secrets"
    for prefix in ("", "/{env}"):
        yield "POST", f"{prefix}/call", "call"  # first: they are tried in this order
        yield "GET", f"{prefix}/tools", "tools"
        yield "GET", f"{prefix}/splits", "splits"
        yield "POST", f"{prefix}/tasks", "tasks"
        yield "POST", f"{prefix}/num_tasks", "num_tasks"
        for name in ("task", "get_task"):  # one page of the documents uses the second name
            yield "POST", f"{prefix}/{name}", "task"
            yield "POST", f"{prefix}/{name}_range", "task_range"
        yield "GET", f"{prefix}/task_tools", "task_tools"
        yield "GET", f"{prefix}/prompt", "prompt"
        yield "GET", f"{prefix}/messages", "messages"
        yield "POST", f"{prefix}/score_group", "score_group"


@dataclass(frozen=True)
class Routes:
    """The handlers, over what they ask."""

    catalog: Catalog
    sessions: Sessions

    def table(self) -> Iterator[web.RouteDef]:
        """Yield all routes."""
        for method, path, handler in endpoints():
            yield web.route(method, path, getattr(self, handler))

    # --- The server -------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        if (problem := self.sessions.why_not_ready()) is not None:
            raise problem
        return web.json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        return web.json_response({"version": __version__, "build_sha": None})

    async def metrics(self, request: web.Request) -> web.Response:
        body, content_type = self.sessions.metrics.expose(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

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
        return new_session_id(request)

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
                task="" if body.split is None else f"{body.split} {body.index}",
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

    async def messages(self, request: web.Request) -> web.Response:
        async with self._session(request) as session:
            self._expect(session, "message_block_types", "messages; it has a prompt")
            return _json(await session.messages())

    async def call(self, request: web.Request) -> web.StreamResponse:
        sid = parsing.session_id(request)
        body = await parsing.body(request, CallBody)
        call_id = parsing.call_id(body.task_id)
        return await self._stream_call(request, sid, lambda session: session.call(body.name, body.input, call_id))

    async def score_group(self, request: web.Request) -> web.StreamResponse:
        sid = parsing.session_id(request)
        body = await parsing.body(request, ScoreGroup)
        call_id = parsing.call_id(body.task_id)
        candidates = [candidate.model_dump() for candidate in body.candidates]

        def start(session: Session) -> ToolCall:
            self._expect(session, "supports_score_group", "score_group")
            return session.score_group(candidates, call_id)

        return await self._stream_call(request, sid, start)

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

    async def _stream_call(
        self, request: web.Request, sid: str, start: Callable[[Session], ToolCall]
    ) -> web.StreamResponse:
        try:
            session = self.sessions.get(sid)
            with session.request():
                return await answer_call(request, start(session))
        except UnknownCall:
            return answer_error("unknown task_id")
        except SessionEnded as exc:
            if exc.failure.reason in (Reason.SETUP_FAILED, Reason.SETUP_TIMEOUT):
                return answer_error(str(exc))
            raise

    def _expect(self, session: Session, field: str, feature: str) -> None:
        """Refuse what a session's environment doesn't have, as its list of tools tells. Raises NotFound."""
        environment = self.catalog.find(session.environment)
        if environment is not None and not getattr(environment.tools, field):
            raise NotFound(f"{environment.name!r} has no {feature}")

    @asynccontextmanager
    async def _session(self, request: web.Request) -> AsyncIterator[Session]:
        session = self.sessions.get(parsing.session_id(request))
        with session.request():
            yield session


def new_session_id(request: web.Request) -> web.Response:
    """Answer with an id that no session has had. Nothing is started."""
    sid = str(uuid.uuid4())
    if "text/event-stream" not in request.headers.get("Accept", ""):
        return web.json_response({"sid": sid})
    return answer_session_id(sid)


def _json(text: str | bytes) -> web.Response:
    raw = text if isinstance(text, bytes) else text.encode()
    return web.Response(body=raw, content_type="application/json", charset="utf-8")


def _answer(request: web.Request, environment: Environment, field: str, value: bytes) -> web.Response:
    """Answer a discovery question, with the environment's name as the client wrote it, which the newer client needs."""
    name = request.match_info.get("env", environment.name)
    return _json(b'{"%b":%b,"env_name":%b}' % (field.encode(), value, to_json(name)))
