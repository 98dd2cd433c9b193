"""Reservations and sessions are made to agree again, where something died between making one and the other.

What is usual is not done here: a session's node gives its place back when it ends (``agent``), and a front when it is told that
it has. Left over are: the places of sessions whose node is lost, which Ray would move to other nodes; places whose front died
before the session was made; and sessions whose place was given away although their node was alive after all.
"""

from __future__ import annotations

from typing import Protocol

import aiohttp
import anyio
import structlog

from host.cluster.membership import Membership
from host.cluster.names import AgentAway, ClusterAway, Placement, session_group
from host.cluster.node import Node
from host.cluster.reservations import Reservations

log = structlog.get_logger()

_RELEASE_S = 0.5
_COMPARE_S = 10.0
_SHARE = 50
"""One part in so many of the time goes into comparing: Ray's list has all that ever were reserved, and grows."""

_ROUNDS = 4
"""In how many comparisons in a row something must be left over before it is believed: it might be on its way."""


class ReconcileCluster(Protocol):
    """What is needed of Ray here."""

    async def release(self, name: str) -> None:
        """Give a reservation back."""

    async def reservations(self) -> dict[str, Placement]:
        """Return all sessions' reservations."""

    async def forget_agent(self, node: str) -> None:
        """Have Ray not start a node's agent again."""


class Reconciler:
    """Runs beside a front; several of them don't disturb each other."""

    def __init__(self, cluster: ReconcileCluster, http: aiohttp.ClientSession) -> None:
        self._cluster = cluster
        self._http = http
        self._places: list[str] = []
        self._agents: list[str] = []
        self._orphans: dict[tuple[str, Placement], int] = {}
        self._strays: dict[str, int] = {}

    def note_lost(self, node: Node) -> None:
        """A node is lost: its sessions' places are to be given back, before Ray finds others for them."""
        self._places += node.sessions
        self._agents.append(node.id)

    async def run(self, membership: Membership, reservations: Reservations) -> None:
        """Go on for ever."""
        next_at = anyio.current_time()
        while True:
            await anyio.sleep(_RELEASE_S)
            try:
                await self.give_back()
                if (began := anyio.current_time()) >= next_at:
                    await self.compare(membership, reservations)
                    took_s = anyio.current_time() - began
                    next_at = began + max(_COMPARE_S, _SHARE * took_s)
            except ClusterAway:
                continue  # tried again

    async def give_back(self) -> None:
        """Give back the places of sessions that are lost, and end the lost nodes' agents. Raises ClusterAway."""
        while self._places:
            await self._cluster.release(session_group(self._places[-1]))
            self._places.pop()
        while self._agents:
            try:
                await self._cluster.forget_agent(self._agents[-1])
            except AgentAway:
                log.debug("agent_gone", node=self._agents[-1])
            self._agents.pop()

    async def compare(self, membership: Membership, reservations: Reservations) -> None:
        """Compare all reservations with all sessions once. Raises ClusterAway."""
        placed = await self._cluster.reservations()
        await membership.wait_looked()
        here = reservations.making
        orphans = {
            (sid, place): self._orphans.get((sid, place), 0) + 1
            for sid, place in placed.items()
            if sid not in here and not membership.is_live(sid)
        }
        for (sid, _place), rounds in orphans.items():
            if rounds >= _ROUNDS:
                log.warning("place_without_session", session=sid)
                await self._cluster.release(session_group(sid))
        self._orphans = orphans
        strays = {
            sid: self._strays.get(sid, 0) + 1
            for node in membership
            for sid in (*node.sessions, *node.strays)
            if sid not in placed and sid not in here
        }
        for node in membership:
            lost = [sid for sid in (*node.sessions, *node.strays) if strays.get(sid, 0) >= _ROUNDS]
            if lost and node.url is not None:
                log.warning("sessions_without_place", node=node.id, sessions=len(lost))
                await self._end(node, lost)
        self._strays = strays

    async def _end(self, node: Node, sids: list[str]) -> None:
        try:
            async with self._http.post(f"{node.url}/node/end", json={"sids": sids}, headers=node.headers) as response:
                response.raise_for_status()
        except (aiohttp.ClientError, OSError) as exc:
            log.warning("sessions_not_ended", node=node.id, error=type(exc).__name__)
