"""The nodes, as a front sees them: which there are, whether their hosts can be used, which sessions each has.

Ray tells which nodes there are. Each node's own host is asked each second for its sessions: so every front knows where every
session is, and which are lost when a node is. What Ray says late, that a node is dead, is seen here from its host and its
raylet, neither of which answers any more.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import aiohttp
import anyio
import structlog

from host.cluster.agent_status import AgentStatus, why_not_this
from host.cluster.knock import Knock, knock
from host.cluster.names import AgentAway, ClusterAway, ClusterNode
from host.cluster.node import Node
from host.errors import Failure, Reason

log = structlog.get_logger()

_LOOK_S = 1.0
_ANSWER_S = 3.0
_SILENT_S = 5.0
"""For host and raylet both to say nothing at all, before their node is taken for dead. A refused connection is an answer."""

_REMEMBER_S = 3600.0
_MAX_REMEMBERED = 10_000


class MembershipCluster(Protocol):
    """What is needed of Ray here."""

    async def nodes(self) -> list[ClusterNode]:
        """Return all nodes."""

    async def start_agent(self, node: ClusterNode, settings: Mapping[str, Any]) -> None:
        """Start a node's agent, unless it has one."""

    async def agent_status(self, node: str) -> AgentStatus:
        """Return what a node's agent says."""

    async def forget_agent(self, node: str) -> None:
        """Have Ray not start it again."""


class Membership:
    """All nodes by Ray's id, and all sessions by theirs."""

    def __init__(
        self,
        cluster: MembershipCluster,
        settings: Mapping[str, Any],
        http: aiohttp.ClientSession,
        *,
        on_lost: Callable[[Node], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._http = http
        self._on_lost = on_lost
        self._clock = clock
        self._nodes: dict[str, Node] = {}
        self._owners: dict[str, Node] = {}
        self._last: OrderedDict[str, tuple[Node, float]] = OrderedDict()  # where it was, and when that ended
        self._lost: OrderedDict[str, tuple[Failure, float, str]] = OrderedDict()
        self._given_up: set[str] = set()
        self._changed = asyncio.Event()
        self._looked = asyncio.Event()
        self.head_away: str | None = None
        """Why Ray can't be asked just now, None if it can."""

    def __iter__(self) -> Iterator[Node]:
        return iter(tuple(self._nodes.values()))

    def get(self, node: str) -> Node | None:
        """Return a node by Ray's id."""
        return self._nodes.get(node)

    @property
    def usable(self) -> list[Node]:
        """The nodes whose hosts can take new sessions."""
        return [node for node in self if node.is_usable]

    @property
    def room(self) -> int:
        """How many more sessions fit on them."""
        return sum(max(node.info.sandboxes - len(node.sessions), 0) for node in self.usable)

    @property
    def unusable_ids(self) -> frozenset[str]:
        """The nodes that no session can be placed on, those that are lost while Ray doesn't know it yet among them."""
        return frozenset(node.id for node in self if not node.is_usable) | self._given_up

    @property
    def environments(self) -> Mapping[str, str]:
        """The environments by name, and their images, as some node says; the first is the default."""
        found = next((node.environments for node in (*self.usable, *self) if node.environments), ())
        return {entry["name"]: entry["image"] for entry in found}

    def how_nodes_are(self) -> str:
        """Return in words why there is no place."""
        if not self._nodes:
            return "no living node of the cluster has the resource ors_sandbox"
        usable = self.usable
        words = f"{sum(len(node.sessions) for node in usable)} sessions on {len(usable)} nodes"
        others = [node for node in self if not node.is_usable]
        return words + "".join(f"; node {node.info.address} is {node.state}: {node.words}" for node in others[:3])

    async def wait_changed(self) -> None:
        """Wait until nodes have become usable, or are so no more."""
        await self._changed.wait()

    async def wait_looked(self) -> None:
        """Wait until all nodes have been looked at once more."""
        await self._looked.wait()

    # --- Sessions -----------------------------------------------------------------------------------------------------

    @property
    def sessions(self) -> int:
        """How many sessions there are on all nodes."""
        return len(self._owners)

    def owner(self, sid: str) -> Node | None:
        """Return the node that has a session, or had it last."""
        if (node := self._owners.get(sid)) is not None:
            return node
        return self._last[sid][0] if sid in self._last else None

    def is_live(self, sid: str) -> bool:
        """Return True if a node said at the last look that it has the session."""
        return sid in self._owners

    def add(self, sid: str, node: Node) -> None:
        """Note where a session is."""
        self._lost.pop(sid, None)
        self._last.pop(sid, None)
        self._owners[sid] = node
        node.sessions[sid] = self._clock()

    def remove(self, sid: str, node: Node | None = None) -> None:
        """Note that a session has ended, or never began on ``node``; its node knows why."""
        if (node := self._owners.pop(sid, node)) is not None:
            node.sessions.pop(sid, None)
            self._last[sid] = (node, self._clock())
            while len(self._last) > _MAX_REMEMBERED:
                self._last.popitem(last=False)

    def failure(self, sid: str) -> Failure | None:
        """Return why a session was lost with its node, None if it wasn't."""
        while self._lost:
            _failure, at, _node = next(iter(self._lost.values()))
            if at >= self._clock() - _REMEMBER_S and len(self._lost) <= _MAX_REMEMBERED:
                break
            self._lost.popitem(last=False)
        return self._lost[sid][0] if sid in self._lost else None

    # --- Looking ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look each second."""
        while True:
            await self.look()
            await anyio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Look once at everything."""
        before = {node.id for node in self.usable}
        try:
            found = await self._cluster.nodes()
        except ClusterAway as exc:
            if self.head_away is None:
                log.warning("ray_away", error=str(exc))
            self.head_away = str(exc)
        else:
            if self.head_away is not None:
                log.info("ray_back")
            self.head_away = None
            await self._take_in(found)
        async with anyio.create_task_group() as tasks:
            for node in self:
                if not node.lost:
                    tasks.start_soon(self._visit, node)
        if {node.id for node in self.usable} != before:
            self._changed.set()
            self._changed = asyncio.Event()
        self._looked.set()
        self._looked = asyncio.Event()

    async def _take_in(self, found: list[ClusterNode]) -> None:
        for info in found:
            node = self._nodes.get(info.id)
            if not info.alive:
                self._given_up.discard(info.id)
                if node is not None:
                    self._lose(node, "Ray says that it is dead")
            elif node is None and info.sandboxes > 0 and await self._is_there(info):
                log.info("node_joined", node=info.id, address=info.address, sessions=info.sandboxes)
                self._nodes[info.id] = Node(info)
        for id in self._nodes.keys() - {info.id for info in found}:
            self._lose(self._nodes[id], "Ray doesn't know it any more")

    async def _is_there(self, info: ClusterNode) -> bool:
        """Tell whether a node may join: one that was taken for dead here, before Ray did, must be reached again."""
        if info.id in self._given_up and await knock(info.address, info.port) is not Knock.OPEN:
            return False
        self._given_up.discard(info.id)
        return True

    async def _visit(self, node: Node) -> None:
        if node.url is None:
            await self._ask_agent(node)
        if node.url is not None:
            await self._ask_host(node)
        if node.url is None and node.was_ready and not node.lost:
            await self._suspect(node)

    async def _ask_agent(self, node: Node) -> None:
        try:
            if not node.has_agent:
                await self._cluster.start_agent(node.info, self._settings)
                node.has_agent = True
            status = await self._cluster.agent_status(node.id)
        except (AgentAway, ClusterAway) as exc:
            node.has_agent = node.has_agent and not isinstance(exc, AgentAway)
            node.say("preparing", f"its agent doesn't answer: {exc}")
            return
        node.mismatch = why_not_this(self._settings, status)
        node.say(status.state if status.state != "ready" else "preparing", status.words)
        node.url, node.key = status.url, status.key

    async def _ask_host(self, node: Node) -> None:
        began = self._clock()
        try:
            async with asyncio.timeout(_ANSWER_S):
                async with self._http.get(f"{node.url}/node/state", headers=node.headers) as response:
                    response.raise_for_status()
                    state = await response.json()
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            # Its port may be another by now, and its key is: the agent knows.
            node.url = None
            node.say("preparing", f"its host doesn't answer: {type(exc).__name__}")
            return
        node.heard(self._clock(), state["environments"], state["problem"])
        node.strays.clear()
        for sid in state["sessions"]:
            if sid in self._lost and self._lost[sid][2] == node.id:
                node.strays.add(sid)  # it was said to be lost, and stays so
            elif sid not in self._owners and (sid not in self._last or self._last[sid][1] < began):
                self.add(sid, node)  # what has ended since the host was asked may still be in its answer
        live = frozenset(state["sessions"])
        for sid in [sid for sid, at in node.sessions.items() if sid not in live and at < began]:
            self.remove(sid)

    async def _suspect(self, node: Node) -> None:
        """Find out whether a host that doesn't answer is gone with its node."""
        match await knock(node.info.address, node.info.port):
            case Knock.REFUSED:
                self._lose(node, "its raylet is gone")
            case Knock.SILENT if self._clock() - node.heard_at > _SILENT_S:
                self._lose(node, f"it has not answered for {_SILENT_S:g} s")

    async def look_again(self, node: Node) -> None:
        """Look at once at a node whose host broke off an answer; afterwards it is lost, or its host will be back."""
        if not node.lost:
            await self._suspect(node)
        if not node.lost:
            await self._ask_host(node)

    def _lose(self, node: Node, why: str) -> None:
        if node.lost:
            return
        failure = Failure(Reason.NODE_LOST, f"the node that had the session is lost: {why}")
        log.warning("node_lost", node=node.id, address=node.info.address, why=why, sessions=len(node.sessions))
        now = self._clock()
        for sid in node.sessions:
            self._owners.pop(sid, None)
            self._lost[sid] = (failure, now, node.id)
        del self._nodes[node.id]
        self._given_up.add(node.id)
        node.lose(failure, why)
        self._on_lost(node)
