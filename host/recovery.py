"""At the start: what an earlier host of this state directory left. Sessions that can go on are found, all else is removed.

The containers are the state: their labels say which session each is, the runtime in each knows its episode and its calls, and
the age of a file in its socket directory says since when it is idle. Nothing else is kept.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import structlog

from host.engine import (
    LABEL_CREATED,
    LABEL_ENVIRONMENT,
    LABEL_ROLE,
    LABEL_SANDBOX,
    LABEL_SESSION,
    ContainerRef,
    EngineError,
)
from host.errors import Failure, Reason, StartupError
from host.sandbox import Role, SandboxHost
from host.session import Survivor
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
        survivors = list(_survivors(host, left))
        for survivor in survivors:
            host.enlist(survivor.container.name)
    except EngineError as exc:
        raise StartupError(f"the Docker engine doesn't answer: {exc}") from exc
    removed = 0
    try:
        removed = await host.sweep()
    except EngineError as exc:  # tried again in the background; nothing that keeps sessions from being served
        log.warning("leftovers_not_removed", error=str(exc))
    for container in left:
        if container.labels.get(LABEL_ROLE) == Role.SESSION and not container.running:
            sessions.remember(container.labels.get(LABEL_SESSION, ""), _DIED)
    adopted = await sessions.adopt(survivors)
    if left:
        log.info("recovered", adopted=adopted, lost=len(survivors) - adopted, removed=removed)


def _survivors(host: SandboxHost, left: list[ContainerRef]) -> Iterator[Survivor]:
    now = time.time()
    for container in left:
        labels = container.labels
        if labels.get(LABEL_ROLE) != Role.SESSION or not container.running:
            continue
        try:
            yield Survivor(
                sid=labels[LABEL_SESSION],
                environment=labels[LABEL_ENVIRONMENT],
                container=container,
                age_s=max(0.0, now - float(labels[LABEL_CREATED])),
                idle_s=max(0.0, now - host.state.last_touched(labels[LABEL_SANDBOX])),
            )
        except (KeyError, ValueError, OSError) as exc:
            log.warning("container_not_adopted", container=container.name, error=f"{type(exc).__name__}: {exc}")
