"""Why a container ended, in words: as the disk's watch, the engine and its own last output tell it."""

from __future__ import annotations

import signal

import anyio

from host.engine import EngineError
from host.errors import Failure, Reason
from host.rules import Rules
from host.sandbox_host import SandboxHost

_DEATH_WAIT_S = 1.2
"""From a runtime's end to its container's, for the engine to notice."""

_EXPLAIN_S = 1.8
"""For finding out why a container died, that wait included: whoever has to do with it is to know within two seconds."""

_MAX_LOG_CHARS = 4000


async def explain_death(host: SandboxHost, name: str, rules: Rules, end: Exception) -> Failure:
    """Return why a container is of no more use. ``end``: how its channel ended. Never takes longer than two seconds."""
    if full := host.disk.failure(name):
        return full
    try:
        with anyio.fail_after(_EXPLAIN_S):
            death = await host.engine.death(name, wait_s=_DEATH_WAIT_S)
    except (EngineError, TimeoutError) as exc:
        words = str(exc) or f"the engine does not say within {_EXPLAIN_S:g} s"
        return Failure(Reason.CONTAINER_DIED, f"the container's end can't be looked up: {words}")
    if death is None:
        return Failure(Reason.CONTAINER_DIED, f"{end}, and its container goes on")
    if death.out_of_memory:
        memory = rules.memory.human_readable()
        return Failure(Reason.OUT_OF_MEMORY, f"the container used more than its {memory} of memory")
    if death.outside == "removed":
        return Failure(Reason.CONTAINER_DIED, "the container was removed from outside")
    message = f"the container ended with exit code {death.exit_code}{_signal(death.exit_code)}"
    if death.outside == "killed":
        message += ", killed from outside through the engine"
    return Failure(Reason.CONTAINER_DIED, message + quote(death.log))


def _signal(exit_code: int) -> str:
    """Name the signal behind an exit code over 128, as shells and container engines encode it."""
    try:
        return f" ({signal.Signals(exit_code - 128).name})"
    except ValueError:
        return ""


def quote(output: str) -> str:
    """Return how the end of a container's output goes on after a sentence; nothing if there is none."""
    return f"; the end of its output:\n{output[-_MAX_LOG_CHARS:]}" if output else ""
