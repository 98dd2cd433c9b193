"""What an agent says of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from host import __version__


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
