"""What the first two messages of a connection hold. For hosts, who check it; the runtime only says it (``messages.hello``).

Pure, no I/O. To be had from ``messages``, and imported only by whom asks for it there.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from .data_types import Strict


class EpisodeState(Strict):
    """What a host that comes back must know of the episode: its environment, and its calls, the forgotten ones included."""

    environment: str
    running_calls: list[str]
    finished_calls: list[str]
    forgotten_calls: list[str]


EnvironmentName = Annotated[str, Field(max_length=128, pattern=r"^[^\W\d]\w*$")]
"""A Python class's name: it becomes a part of paths and of log lines."""


class Hello(Strict):
    """Params of the runtime's first message. ``environments`` are the names of its classes, in the order given.

    ``agent_goes_first``: when memory is short, the agent's processes can be held to going before the runtime. ``episode`` is
    None until the environment is constructed, and again from ``teardown`` on.
    """

    protocol: int
    token: str = Field(repr=False)
    runtime_version: str
    environments: Annotated[list[EnvironmentName], Field(max_length=1000)]
    agent_goes_first: bool = False
    episode: EpisodeState | None = None


class Welcome(Strict):
    """The host's answer to ``hello``."""

    max_frame_bytes: int
