"""What the front of a cluster asks the host of a node (``cluster``): which sessions there are, and to end some.

    GET   /node/state     who this is, the ids of its sessions, its environments and their images, what keeps it from new ones
    GET   /node/session   what is known of the session in ``X-Session-ID``: live, ended or unknown
    POST  /node/end       end sessions whose reservation is lost: {"sids": […]}
    POST  /node/end_all   end all, take no more, and answer when nothing is left of them

Only a host that an agent has started answers these, and only to the agent's key: session ids are half a credential.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from host import __version__, parsing
from host.catalog import Catalog
from host.errors import Failure, Reason, SessionEnded, UnknownSession
from host.sessions import Sessions

_SHUTDOWN = Failure(Reason.HOST_SHUTDOWN, "the cluster's host is shutting down")
_LOST = Failure(Reason.NODE_LOST, "the node was taken for dead, and the session's place was given away")

_TOLD_S = 5.0
"""For so long it is told that a session has ended: some begin and end between two looks, which are a second apart."""


class _End(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sids: tuple[str, ...]


@dataclass(frozen=True)
class NodeApi:
    """The handlers, over what they ask."""

    catalog: Catalog
    sessions: Sessions

    def table(self) -> Iterator[web.RouteDef]:
        """Yield all routes: none has a second segment that ORS has, so an environment may be called ``node``."""
        yield web.get("/node/state", self.node_state)
        yield web.get("/node/session", self.node_session)
        yield web.post("/node/end", self.node_end)
        yield web.post("/node/end_all", self.node_end_all)

    async def node_state(self, request: web.Request) -> web.Response:
        """What a front looks at each second."""
        problem = self.sessions.why_not_ready()
        names = self.catalog.names
        return web.json_response(
            {
                "version": __version__,
                "sessions": [session.sid for session in self.sessions],
                "ended": self.sessions.ended_within(_TOLD_S),
                "environments": [{"name": name, "image": self.catalog.get(name).image.tag} for name in names],
                # That it is full is known already, from the reservations.
                "problem": None if problem is None or problem.reason == Reason.CAPACITY else str(problem),
            }
        )

    async def node_session(self, request: web.Request) -> web.Response:
        """Whether a session is, or was, here."""
        try:
            self.sessions.get(parsing.session_id(request))
        except SessionEnded:
            return web.json_response({"known": "ended"})
        except UnknownSession:
            return web.json_response({"known": "unknown"})
        return web.json_response({"known": "live"})

    async def node_end(self, request: web.Request) -> web.Response:
        """End sessions whose places were given away."""
        sids = set((await parsing.body(request, _End)).sids)
        ending = [session for session in self.sessions if session.sid in sids]
        for session in ending:
            session.close(_LOST)
        return web.json_response({"ending": len(ending)})

    async def node_end_all(self, request: web.Request) -> web.Response:
        """End all sessions."""
        await self.sessions.close_all(_SHUTDOWN)
        return web.json_response({"status": "ended"})
