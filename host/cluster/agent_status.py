"""What an agent says of itself, and whether a front can use its node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from host import __version__
from host.cluster.node_settings import differences


@dataclass(frozen=True)
class AgentStatus:
    """What an agent says of itself. ``url`` and ``key`` are None until the host answers."""

    state: str = "preparing"
    words: str = ""
    url: str | None = None
    key: str | None = field(default=None, repr=False)
    sessions: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    version: str = __version__


def why_not_this(settings: Mapping[str, Any], status: AgentStatus) -> str | None:
    """Return in words why a front with these settings makes no sessions on the agent's node, None if it may."""
    if status.version != __version__:
        return f"its agent is ors-host {status.version}, and this is {__version__}"
    if different := differences(settings, status.settings):
        return f"its agent runs with other settings ({', '.join(different)})"
    return None
