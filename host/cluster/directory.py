"""Which node a session is on: as the nodes said at the last look, else as Ray knows, else as the nodes say when asked."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

import aiohttp

from host.cluster.membership import Membership
from host.cluster.names import ClusterAway, Placement, session_group
from host.cluster.node import Node
from host.errors import SessionEnded, UnknownEnvironment, UnknownSession

_ANSWER_S = 3.0
_ASKED_AT_ONCE = 16


class DirectoryCluster(Protocol):
    """What is needed of Ray here."""

    async def find(self, name: str) -> Placement | None:
        """Return a reservation by its name."""


class Directory:
    """Finds things on the nodes."""

    def __init__(self, cluster: DirectoryCluster, membership: Membership, http: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._membership = membership
        self._http = http

    async def node_of(self, sid: str) -> Node:
        """Return the node that has a session, or knows how it ended.

        Raises:
            SessionEnded: the node is lost.
            UnknownSession: no node knows it.
        """
        if (failure := self._membership.failure(sid)) is not None:
            raise SessionEnded(failure)
        node = self._membership.owner(sid)
        if node is None or (node.lost and not self._membership.is_live(sid)):
            node = await self._placed(sid) or await self._asked(sid)
        if node is None:
            raise UnknownSession
        return node

    async def _placed(self, sid: str) -> Node | None:
        try:
            placement = await self._cluster.find(session_group(sid))
        except ClusterAway:
            return None
        return self._membership.get(placement.node) if placement is not None and placement.node is not None else None

    async def _asked(self, sid: str) -> Node | None:
        """Ask all nodes: a session that has ended has no place any more, but its node answers for it for an hour."""
        limit = asyncio.Semaphore(_ASKED_AT_ONCE)

        async def ask(node: Node) -> Node | None:
            headers = {**node.headers, "X-Session-ID": sid}
            try:
                async with (
                    limit,
                    asyncio.timeout(_ANSWER_S),
                    self._http.get(f"{node.url}/node/session", headers=headers) as response,
                ):
                    response.raise_for_status()
                    return node if (await response.json())["known"] != "unknown" else None
            except (aiohttp.ClientError, TimeoutError, OSError):
                return None

        answers = await asyncio.gather(*(ask(node) for node in self._membership if node.url is not None))
        return next((node for node in answers if node is not None), None)

    # --- Environments -------------------------------------------------------------------------------------------------

    @property
    def environments(self) -> Mapping[str, str]:
        """The environments by name, and their images; the first is the default. Empty if no node has said yet."""
        return self._membership.environments

    def image_of(self, env_name: str | None, deployment: str) -> str:
        """Return the image that a creation means (``compat.md``). Raises UnknownEnvironment."""
        known = self.environments
        names = (deployment.lower(), deployment.rpartition("/")[2].lower())
        if deployment and (name := next((name for name in names if name in known), None)):
            return known[name]
        if env_name is not None:
            if env_name.lower() not in known:
                raise UnknownEnvironment(env_name, known)
            return known[env_name.lower()]
        return next(iter(known.values()))
