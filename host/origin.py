"""Where a session comes from: a client's request for one, or a container that an earlier host left running."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from host.engine import ContainerRef, Image


@dataclass(frozen=True)
class SessionSpec:
    """What a session is made from."""

    sid: str
    environment: str
    image: Image
    task_spec: Mapping[str, Any] = field(repr=False)
    secrets: Mapping[str, str] = field(repr=False)
    toolset_name: str | None = None
    task: str = ""
    """A few words that name the task, for whoever looks at the host; made from ``task_spec`` if there are none."""


@dataclass(frozen=True)
class Survivor:
    """What an earlier host left running: a session's container. Ages in seconds."""

    sid: str
    environment: str
    container: ContainerRef
    age_s: float
    idle_s: float
