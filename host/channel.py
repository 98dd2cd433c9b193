"""What a sandbox needs of what stands behind it: requests and their answers, and how both end.

Two kinds of things stand there. A runtime of ours dials a unix socket (``runtime_channel``); any other ORS server listens on a
port of its own container (``server_channel``). Sessions, pool and calls don't know which it is.

Words for an end: ``ChannelClosed`` (we closed it), ``ChannelBroken`` (the other side is gone), ``ProtocolViolation`` (it broke
the rules). ``RuntimeFault`` is no end: the other side answered with an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from sandbox_runtime.messages import EpisodeState, Fault, Method


class ChannelClosed(Exception):
    """This side closed the channel."""


class ChannelBroken(Exception):
    """The other end is gone; ``str()`` says how that was noticed."""


class ProtocolViolation(Exception):
    """The other side said what it may not; the channel was closed for it."""


class RuntimeFault(Exception):
    """The answer is an error: ``fault`` says which, ``str()`` what was said."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


class RequestTimeout(Exception):
    """No answer in time. ``ended``: it was confirmed since that what the request started is over."""

    def __init__(self, *, ended: bool) -> None:
        super().__init__("no answer in time")
        self.ended = ended


class Greeting(Protocol):
    """What the other side says of itself before it is asked anything."""

    @property
    def environments(self) -> Sequence[str]:
        """The names of the environments in the container, in the order given."""

    @property
    def episode(self) -> EpisodeState | None:
        """The episode that an earlier host left there."""

    @property
    def agent_goes_first(self) -> bool | None:
        """Whether the agent's processes go before the environment when memory is short; None if nobody promised that."""


class Channel(Protocol):
    """One sandbox's channel, from before its container is started until ``aclose()``."""

    @property
    def ended(self) -> bool:
        """True once nothing more comes or goes."""

    @property
    def silence(self) -> str:
        """What to say of a container that started, and from which nothing was heard in time."""

    async def listen(self, *, owner: tuple[int, int] | None, again: bool = False) -> None:
        """Prepare, before the container is started; ``again`` if an earlier host did.

        ``owner`` is the (uid, gid) that the container's root has on the host under user-namespace remapping, else None.

        Raises:
            OSError: a directory or socket can't be made.
        """

    async def wait_hello(self) -> Greeting:
        """Wait until the other side can be asked.

        Raises:
            ChannelClosed, ChannelBroken, ProtocolViolation: the channel ended first.
            SandboxFailed: it can't be reached from here at all.
        """

    async def wait_ended(self) -> Exception:
        """Wait until the channel has ended; return why."""

    async def request(
        self, method: Method, params: Mapping[str, Any], *, timeout_s: float, cancel_grace_s: float = 0
    ) -> Any:
        """Ask; return what must be read with ``answers.as_json`` or ``as_value``.

        Raises:
            RuntimeFault: the answer is an error.
            InvalidAnswer: it is not what the method promises.
            RequestTimeout: there was none in ``timeout_s``.
            ChannelClosed, ChannelBroken, ProtocolViolation: the channel ended.
            frames.FrameTooLarge: the request itself is over the limit.
        """

    def peer_died(self) -> None:
        """Take note that the container is dead."""

    def hang_up(self) -> None:
        """End the channel; whoever waits gets ``ChannelClosed``."""

    async def aclose(self) -> None:
        """Hang up, and give back what the channel holds on this machine."""
