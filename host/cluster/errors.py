"""What a front tells clients that a host on one machine doesn't."""

from __future__ import annotations

from host.errors import HostError


class HeadAway(HostError):
    """Ray's head doesn't answer, so no session can be placed."""

    status = 503
    reason = "starting"
    retry_after_s = 2
    starting = True

    def __init__(self) -> None:
        super().__init__("Ray's head doesn't answer, so no new session can be placed; those there are go on")


class NoNode(HostError):
    """No node can be asked."""

    status = 503
    reason = "starting"
    retry_after_s = 2
    starting = True


class NodeSilent(HostError):
    """The session's node is there, but its host is not: it is being started again, and goes on with the session then."""

    status = 503
    reason = "starting"
    retry_after_s = 2
    starting = True

    def __init__(self) -> None:
        super().__init__("the session's host is being started again")
