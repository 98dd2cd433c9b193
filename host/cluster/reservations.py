"""A place for a session: asked of Ray, waited for within bounds, given back when the session is over.

There is no queue of ours in front of Ray's. A reservation that Ray can't place yet waits there, where the autoscaler sees it;
how many of them wait for this front, and for how long, is bounded as it is on one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Protocol

import anyio
import structlog

from host.cluster.errors import HeadAway
from host.cluster.membership import Membership
from host.cluster.names import ClusterAway, Placement, PlaceTaken, session_group
from host.cluster.node import Node
from host.errors import CapacityExceeded, SessionExists
from host.settings import Settings

log = structlog.get_logger()

_AT_ONCE_S = 1.0
"""Ray places within this time what it can place; what takes longer counts as waiting."""

_GIVE_UP_S = 5.0
_TELL_S = 10.0


class ReservationCluster(Protocol):
    """What is needed of Ray here."""

    async def reserve(self, name: str, bundle: Mapping[str, float], exclude: Collection[str]) -> str:
        """Ask for a place, and return the reservation's id."""

    async def wait_placed(self, group: str) -> str:
        """Wait until it is placed, and return the node's id."""

    async def find(self, name: str) -> Placement | None:
        """Return a reservation by its name."""

    async def release(self, name: str) -> None:
        """Give a reservation back."""


class Reservations:
    """The places of this front's sessions."""

    def __init__(self, cluster: ReservationCluster, membership: Membership, settings: Settings) -> None:
        self._cluster = cluster
        self._membership = membership
        self._settings = settings
        self.waiting = 0
        """How many creations wait for a place."""
        self._refused = 0
        self._tell_again_at = 0.0
        self.making: set[str] = set()
        """The sessions that are being created."""

    async def place(self, sid: str, tag: str) -> Node:
        """Return the node on which a session has a place from now on.

        Raises:
            SessionExists: the id is in use.
            CapacityExceeded: too many wait already, or no place became free in time.
            HeadAway: Ray's head doesn't answer.
        """
        own = self._settings.for_image(tag)
        bundle = {"ors_sandbox": 1.0, "CPU": float(own.cpus), "memory": float(own.memory)}
        name = session_group(sid)
        has_place = False
        try:
            async with asyncio.timeout(self._settings.queue_timeout_s):
                while True:
                    excluded = self._membership.unusable_ids
                    group = await self._reserve(sid, name, bundle, excluded)
                    try:
                        node = await self._wait(group, excluded)
                        has_place = node is not None
                    finally:
                        if not has_place:
                            await self.release(sid)
                    if node is not None:
                        return node
        except TimeoutError:
            raise self._refusal(f"no node had a place within {self._settings.queue_timeout_s:g} s") from None
        except ClusterAway as exc:
            raise HeadAway from exc

    async def release(self, sid: str) -> None:
        """Give a session's place back. If Ray's head doesn't answer, the place is given back when it does."""
        with anyio.move_on_after(_GIVE_UP_S, shield=True):
            try:
                await self._cluster.release(session_group(sid))
            except ClusterAway as exc:
                log.warning("place_not_released", session=sid, error=str(exc))

    async def _reserve(self, sid: str, name: str, bundle: Mapping[str, float], excluded: Collection[str]) -> str:
        try:
            return await self._cluster.reserve(name, bundle, excluded)
        except PlaceTaken:
            if self._membership.is_live(sid) or not await self._is_left_over(sid, name):
                raise SessionExists from None
            await self.release(sid)
        try:
            return await self._cluster.reserve(name, bundle, excluded)
        except PlaceTaken:
            raise SessionExists from None

    async def _is_left_over(self, sid: str, name: str) -> bool:
        """Tell whether a session's place is there although it is over: its node gives it back within seconds."""
        placement = await self._cluster.find(name)
        if placement is None:
            return True
        owner = self._membership.owner(sid)
        return placement.node is not None and owner is not None and owner.id == placement.node

    async def _wait(self, group: str, excluded: Collection[str]) -> Node | None:
        """Wait for a place; return None if it is better to ask anew, since there are other nodes to choose from."""
        placed = asyncio.ensure_future(self._cluster.wait_placed(group))
        counted = False
        try:
            await asyncio.wait((placed,), timeout=_AT_ONCE_S)
            if not placed.done():
                if self.waiting >= self._settings.queue_size:
                    raise self._refusal(f"no place is free and {self.waiting} wait for one; try again later")
                self.waiting += 1
                counted = True
                while not placed.done() and self._membership.unusable_ids >= set(excluded):
                    changed = asyncio.ensure_future(self._membership.wait_changed())
                    try:
                        await asyncio.wait((placed, changed), return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        changed.cancel()
            if not placed.done():
                return None
            with suppress(LookupError):
                node = self._membership.get(placed.result())
                while node is not None and not node.is_usable and node.state == "preparing":  # it has just joined
                    await self._membership.wait_looked()
                if node is not None and node.is_usable:
                    return node
            await self._membership.wait_looked()  # nothing is known of it yet, or it is gone
            return None
        finally:
            placed.cancel()
            if counted:
                self.waiting -= 1

    def _refusal(self, words: str) -> CapacityExceeded:
        """Return the error; the log is told of it, but not of each: a trainer that is refused asks again, many times over."""
        self._refused += 1
        now = asyncio.get_running_loop().time()
        nodes = self._membership.how_nodes_are()
        if now >= self._tell_again_at:
            log.warning("sessions_refused", since_last_told=self._refused, nodes=nodes, waiting=self.waiting)
            self._refused, self._tell_again_at = 0, now + _TELL_S
        return CapacityExceeded(f"{words} ({nodes})")
