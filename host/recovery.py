"""At the start: what an earlier host of this state directory left. Sessions that can go on are found, all else is removed.

The containers are the state: the runtime in each knows its episode and its calls. Beside them there is a note of which session
each is for (``state.py``), the age of which says since when it is idle. A container without one is nobody's yet.
"""

from __future__ import annotations

import time

import structlog

from host.engine import LABEL_ROLE, LABEL_SANDBOX, ContainerRef, EngineError, Role
from host.errors import Failure, Reason, StartupError
from host.origin import Survivor
from host.sandbox_host import SandboxHost
from host.sessions import Sessions

log = structlog.get_logger()

_DIED = Failure(
    Reason.CONTAINER_DIED, "the container ended while no host was there (its runtime waits --reconnect-window)"
)


async def recover(host: SandboxHost, sessions: Sessions) -> None:
    """Go on with the sessions that an earlier host left running, and remove what else it left.

    Raises:
        StartupError: the engine doesn't answer.
    """
    try:
        left = await host.engine.list_ours(host.state.server_id)
    except EngineError as exc:
        raise StartupError(f"the Docker engine doesn't answer: {exc}") from exc
    survivors = []
    for container in left:
        if container.labels.get(LABEL_ROLE) != Role.SESSION:
            continue
        if (survivor := _survivor(host, container)) is None:
            continue
        if container.running:
            host.enlist(container.name)
            survivors.append(survivor)
        else:
            sessions.remember(survivor.sid, _DIED)
    host.expect_late(left)
    removed = 0
    try:
        removed = await host.sweep()
    except EngineError as exc:  # tried again in the background; nothing that keeps sessions from being served
        log.warning("leftovers_not_removed", error=str(exc))
    adopted = await sessions.adopt(survivors)
    if left:
        log.info("recovered", adopted=adopted, lost=len(survivors) - adopted, removed=removed)


def _survivor(host: SandboxHost, container: ContainerRef) -> Survivor | None:
    """Return the session that a container is for, if there is one."""
    sandbox_id = container.labels.get(LABEL_SANDBOX, "")
    assignment = host.state.assignment(sandbox_id)
    if assignment is None:
        return None
    now = time.time()
    return Survivor(
        sid=assignment.session,
        environment=assignment.environment,
        container=container,
        age_s=max(0.0, now - assignment.created_at),
        idle_s=max(0.0, now - host.state.last_touched(sandbox_id)),
    )
