"""The ``ors-host`` of one node, started by its agent: ``python -m host.cluster.node_host serve``.

It reads its settings as a line of JSON from its standard input, so that no key is on a command line, in the environment or on
the disk; and it lives for as long as that pipe is open, so that it ends with its agent however that ends. Its sessions stay:
the next agent's host goes on with them. On its standard output it says, in lines of JSON, how far it is, and why it ended.
"""

from __future__ import annotations

import json
import os
import sys

import anyio
import anyio.to_thread
import structlog
from pydantic import ValidationError

from host import event_loop, logs
from host.cluster.images import get_images
from host.cluster.node_settings import on_node
from host.errors import StartupError
from host.priority import die_no_sooner_than_others, go_before_containers
from host.serve import serve
from host.settings import Settings
from host.state_view import Life, StateView

log = structlog.get_logger()

_PREDECESSOR_ENDS_S = 45.0
_LOOK_S = 0.1
_WORDS_CHARS = 4000
"""They may have the end of a container's output in them."""


class _Status:
    """What the agent is told."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, kind: str, words: str) -> None:
        """Write a line; nobody may be there any more to read it."""
        try:
            os.write(self._fd, json.dumps({"kind": kind, "words": words[:_WORDS_CHARS]}).encode() + b"\n")
        except OSError:
            log.warning("agent_gone", unsaid=words)


def main() -> None:
    """Serve until standard input ends."""
    status = _Status(os.dup(1))
    os.dup2(2, 1)  # whatever else is printed is a line of the log
    os.set_inheritable(0, False)
    try:
        told = json.loads(_first_line())
        settings = on_node(told["settings"], told["own"])
        logs.configure(format=settings.log_format, level=settings.log_level)
        go_before_containers()  # Ray's workers, of whom this is a child, come last in both
        die_no_sooner_than_others()
        event_loop.run(_run, settings, status)
    except StartupError as exc:
        status.say("failed", str(exc))
        sys.exit(logs.printable(f"ors-host: {exc}"))
    except ValidationError as exc:
        words = "; ".join(f"{'.'.join(map(str, error['loc']))}: {error['msg']}" for error in exc.errors())
        status.say("failed", f"this node's settings can't be used: {words}")
        sys.exit(1)


def _first_line() -> bytes:
    line = bytearray()
    while not line.endswith(b"\n"):
        if not (piece := os.read(0, 1 << 16)):
            sys.exit("ors-host: no settings came from the agent")
        line += piece
    return bytes(line)


async def _run(settings: Settings, status: _Status) -> None:
    stop = anyio.Event()
    failed: list[StartupError] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_with_agent, stop)
        try:
            await _wait_for_predecessor(settings, status)
            await anyio.to_thread.run_sync(get_images, settings.image, lambda words: status.say("preparing", words))
            status.say("preparing", "the host starts")
            await serve(settings, stop=stop)
        except StartupError as exc:
            failed.append(exc)
        tasks.cancel_scope.cancel()
    if failed:
        raise failed[0]


async def _stop_with_agent(stop: anyio.Event) -> None:
    """Nothing more is said on standard input; it ends."""
    await anyio.wait_readable(0)
    stop.set()


async def _wait_for_predecessor(settings: Settings, status: _Status) -> None:
    """An agent that died has left a host that lets go of its sessions just now."""
    view = StateView.of(settings.state_dir)
    with anyio.move_on_after(_PREDECESSOR_ENDS_S):
        while view.life is Life.ALIVE:
            status.say("preparing", f"waiting for the host in {settings.state_dir} to end (pid {view.pid})")
            await anyio.sleep(_LOOK_S)
            view = StateView.of(settings.state_dir)


if __name__ == "__main__":
    main()
