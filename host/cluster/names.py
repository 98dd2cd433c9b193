"""Names and values that Ray and the rest of the package have in common."""

from __future__ import annotations

from dataclasses import dataclass

NAMESPACE = "ors-host"
RESOURCE = "ors_sandbox"
"""Of a node: how many sessions it takes."""

_GROUP = "ors-session-"


def session_group(sid: str) -> str:
    """Return the name of a session's reservation."""
    return _GROUP + sid


def session_of(group: str) -> str | None:
    """Return whose reservation has this name; None if it is no session's."""
    return group.removeprefix(_GROUP) if group.startswith(_GROUP) else None


def agent_name(node: str) -> str:
    """Return the name of a node's agent."""
    return f"ors-agent-{node}"


@dataclass(frozen=True)
class Placement:
    """A reservation: its id, and the node that it was placed on; None if it waits for one."""

    group: str
    node: str | None


@dataclass(frozen=True)
class ClusterNode:
    """A node as Ray sees it. ``sandboxes`` is how many sessions it takes."""

    id: str
    address: str
    port: int
    """Of its raylet."""

    sandboxes: int
    alive: bool


class ClusterAway(Exception):
    """Ray's head doesn't answer, so nothing can be placed or looked up; what runs, runs on."""


class AgentAway(Exception):
    """A node has no agent, or it doesn't answer: it is being started again, or its node is gone."""


class PlaceTaken(Exception):
    """There is a reservation of that name."""
