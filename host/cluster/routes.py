"""The endpoints of ORS at a front: each finds out which node is meant, and hands the request on.

The handlers have the names of those on one machine (``host.routes``), by which keys are checked.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web

from host import __version__, parsing
from host.cluster.directory import Directory
from host.cluster.errors import HeadAway, NoNode
from host.cluster.membership import Membership
from host.cluster.reservations import Reservations
from host.cluster.router import Router
from host.errors import (
    CapacityExceeded,
    HostError,
    SandboxFailed,
    SessionEnded,
    SessionExists,
    ShuttingDown,
    UnknownSession,
)
from host.metrics import Metrics
from host.routes import endpoints, new_session_id
from sandbox_runtime.bodies import CreateSession


@dataclass
class ClusterRoutes:
    """The handlers, over what they ask."""

    membership: Membership
    directory: Directory
    reservations: Reservations
    router: Router
    exposed: Metrics
    closing: bool = False
    """True from when the front is to stop: it takes no new sessions."""

    def table(self) -> Iterator[web.RouteDef]:
        """Yield all routes."""
        for method, path, handler in endpoints():
            yield web.route(method, path, getattr(self, handler))

    def elsewhere(self, request: web.Request) -> web.Response | None:
        """Answer for a path whose first segment is no environment: the default environment's is meant."""
        first_segment = request.path.lstrip("/").partition("/")[0].lower()
        environments = self.directory.environments
        if not environments or first_segment in environments:
            return None
        location = f"/{next(iter(environments))}{request.rel_url.raw_path_qs}"
        return web.Response(status=308, headers={"Location": location})

    # --- The server ---------------------------------------------------------------------------------------------------

    async def health(self, request: web.Request) -> web.Response:
        """It lives."""
        return web.json_response({"status": "ok"})

    async def ready(self, request: web.Request) -> web.Response:
        """It takes new sessions."""
        if (problem := self._why_not_ready()) is not None:
            raise problem
        return web.json_response({"status": "ready"})

    async def version(self, request: web.Request) -> web.Response:
        """Which it is."""
        return web.json_response({"version": __version__, "build_sha": None})

    async def metrics(self, request: web.Request) -> web.Response:
        """Of this front."""
        body, content_type = self.exposed.expose(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type})

    # --- Sessions -----------------------------------------------------------------------------------------------------

    async def create_session(self, request: web.Request) -> web.StreamResponse:
        """A new id."""
        return new_session_id(request)

    async def create(self, request: web.Request) -> web.StreamResponse:
        """Reserve a place, and have its node make the session."""
        sid = parsing.session_id(request)
        body = await parsing.body(request, CreateSession)
        if self.closing:
            raise ShuttingDown
        if self.membership.is_live(sid) or sid in self.reservations.making:
            raise SessionExists
        if not self.directory.environments:
            raise NoNode("no node can be asked: " + self.membership.how_nodes_are())
        deployment = request.headers.get("X-Deployment", "").strip()
        image = self.directory.image_of(body.env_name, deployment)
        self.reservations.making.add(sid)
        created = False
        try:
            node = await self.reservations.place(sid, image)
            try:
                raw = body.model_dump_json(exclude_unset=True).encode()
                response = await self.router.to_node(request, node, body=raw)
                created = response.status == 200
                if created:
                    self.membership.add(sid, node)
                else:
                    self.membership.remove(sid, node)  # a look may have found it while it was made
                return response
            except SessionEnded as exc:
                raise SandboxFailed(exc.failure) from None  # lost with its node, while it was made
            finally:
                if not created:
                    await self.reservations.release(sid)
        finally:
            self.reservations.making.discard(sid)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        """End a session, and give its place back."""
        sid = parsing.session_id(request)
        try:
            response = await self.router.to_node(request, await self.directory.node_of(sid))
        except (SessionEnded, UnknownSession):
            return web.json_response({"sid": sid})
        if response.status == 200:
            self.membership.remove(sid)
            await self.reservations.release(sid)
        return response

    async def ping(self, request: web.Request) -> web.StreamResponse:
        """Is it there."""
        return await self._of_session(request)

    async def task_tools(self, request: web.Request) -> web.StreamResponse:
        """Its tools."""
        return await self._of_session(request)

    async def prompt(self, request: web.Request) -> web.StreamResponse:
        """Its prompt."""
        return await self._of_session(request)

    async def messages(self, request: web.Request) -> web.StreamResponse:
        """Its messages."""
        return await self._of_session(request)

    async def call(self, request: web.Request) -> web.StreamResponse:
        """A tool call."""
        return await self._of_session(request, is_stream=True)

    async def score_group(self, request: web.Request) -> web.StreamResponse:
        """A call of another kind."""
        return await self._of_session(request, is_stream=True)

    # --- Discovery ----------------------------------------------------------------------------------------------------

    async def list_environments(self, request: web.Request) -> web.StreamResponse:
        """Any node knows."""
        return await self.router.to_any(request)

    required_secrets = tools = splits = tasks = num_tasks = task = task_range = list_environments

    # --- Common -------------------------------------------------------------------------------------------------------

    async def _of_session(self, request: web.Request, *, is_stream: bool = False) -> web.StreamResponse:
        node = await self.directory.node_of(parsing.session_id(request))
        return await self.router.to_node(request, node, is_stream=is_stream)

    def _why_not_ready(self) -> HostError | None:
        if self.closing:
            return ShuttingDown()
        if self.membership.head_away is not None:
            return HeadAway()
        if not self.membership.usable:
            return NoNode("no node can be used: " + self.membership.how_nodes_are())
        if self.membership.room <= len(self.reservations.making):
            return CapacityExceeded("no place is free: " + self.membership.how_nodes_are())
        return None
