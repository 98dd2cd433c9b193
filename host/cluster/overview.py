"""What there is on a cluster: nodes, their agents and hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import anyio

from host.cluster.agent_status import AgentStatus
from host.cluster.knock import Knock, knock
from host.cluster.names import AgentAway, ClusterAway, ClusterNode


class OverviewCluster(Protocol):
    """What is needed of Ray here."""

    async def nodes(self) -> list[ClusterNode]:
        """Return all nodes."""

    async def agent_status(self, node: str) -> AgentStatus:
        """Return what a node's agent says."""


@dataclass(frozen=True)
class NodeLine:
    """One node. ``url`` is None until its host answers; ``images`` are those that it serves."""

    node: str
    address: str
    url: str | None
    state: str
    words: str
    images: tuple[str, ...]
    sessions: int
    capacity: int

    def as_data(self) -> Mapping[str, Any]:
        """Return it as JSON has it."""
        return {
            "node": self.node,
            "address": self.url,
            "state": self.state,
            "words": self.words,
            "images": list(self.images),
            "sessions": self.sessions,
            "capacity": self.capacity,
        }


async def look_at_nodes(cluster: OverviewCluster) -> list[NodeLine]:
    """Return all nodes that take sessions, or did until they died. Raises ClusterAway."""
    nodes = [node for node in await cluster.nodes() if node.sandboxes > 0]
    lines: dict[str, NodeLine] = {}

    async def look(node: ClusterNode) -> None:
        lines[node.id] = await _line(cluster, node)

    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(look, node)
    return [lines[node.id] for node in nodes]


async def _line(cluster: OverviewCluster, node: ClusterNode) -> NodeLine:
    status = AgentStatus()
    if not node.alive:
        status = AgentStatus("lost", "Ray says that it is dead")
    else:
        try:
            status = await cluster.agent_status(node.id)
        except (AgentAway, ClusterAway) as exc:
            status = AgentStatus("preparing", f"{exc}; a front (ors-host --engine ray) starts one")
            if await knock(node.address, node.port) is Knock.REFUSED:
                status = AgentStatus("lost", "its raylet is gone")
    images = tuple(status.settings.get("image", ())) if status.state == "ready" else ()
    return NodeLine(
        node.id, node.address, status.url, status.state, status.words, images, status.sessions, node.sandboxes
    )
