"""The process in the container: from its command line to its end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

from . import __version__, egress, messages
from .adapter import Adapter
from .data_types import complete_models
from .faults import log_exception
from .hardening import harden, unbuffer_output
from .link import ProtocolViolation
from .loader import LoadError, load
from .settling import settle
from .spawner import can_keep_off_proc
from .worker import Worker

ENVIRONMENT_DIRECTORY = "/opt/env"
SOCKET_DIRECTORY = os.environ.get("ORS_RUNTIME_SOCKET_DIR", "/run/ors")

_COMPLETED_S = 1.0
"""After its start, in which a session that waits for it gets its answers."""

_SETTLED_S = 5.0
"""And then: what does not live so long needs not be small."""

EXIT_HOST_GONE = 0
EXIT_PROTOCOL = 76  # sysexits' EX_PROTOCOL
EXIT_CONFIG = 78  # and EX_CONFIG: the environment can't be loaded


def main(specs: list[str]) -> int:
    """Load the environments, then serve them; return the exit code."""
    if os.path.isdir(ENVIRONMENT_DIRECTORY):
        sys.path.insert(0, ENVIRONMENT_DIRECTORY)
        os.chdir(
            ENVIRONMENT_DIRECTORY
        )  # authors read files that lie beside their code; the agent's commands start elsewhere
    os.environ.update(egress.proxy_environ())  # before the author's code reads them
    try:
        reconnect_s = _reconnect_s()
        egress.start()
        adapter = Adapter(load(specs))
    except (LoadError, ValueError, OSError) as exc:
        print(f"sandbox_runtime: {exc}", file=sys.stderr)
        return EXIT_CONFIG

    gc.enable()

    def hello(token: str) -> dict[str, Any]:
        return messages.hello(
            token=token,
            runtime_version=__version__,
            environments=adapter.names,
            agent_goes_first=can_keep_off_proc(),
        )

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(_COMPLETED_S, complete_models)
        loop.call_later(_SETTLED_S, settle)
        await Worker(adapter, hello, directory=Path(SOCKET_DIRECTORY), reconnect_s=reconnect_s).run()

    try:
        _run(serve)
    except ProtocolViolation as exc:
        print(f"sandbox_runtime: the host broke the protocol: {exc}", file=sys.stderr)
        return EXIT_PROTOCOL
    return EXIT_HOST_GONE


def _reconnect_s() -> float:
    value = os.environ.get("ORS_RUNTIME_RECONNECT_S", "300")
    try:
        return float(value)
    except ValueError:
        raise ValueError(f"ORS_RUNTIME_RECONNECT_S is {value!r}, not a number of seconds") from None


def _run(serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run ``serve`` to its end, whatever the author's code does to the loop.

    ``SystemExit`` from a task of the author's own breaks out of the loop, and so does ``loop.stop()``; neither may end an
    episode.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(serve())
    while not task.done():
        try:
            loop.run_until_complete(task)
        except BaseException as exc:
            if not task.done():
                log_exception(exc)
    task.result()


def _exit_now(signal_number: int, _frame: object) -> NoReturn:
    _leave(128 + signal_number)


def _leave(code: int) -> NoReturn:
    """End the process although the author's code may have left threads that never do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


def run() -> NoReturn:
    """Be the process, from when only the interpreter is there to its end."""
    harden()
    unbuffer_output()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_now)
    code = 1
    try:
        code = main(sys.argv[1:])
    except BaseException as exc:
        log_exception(exc)
    _leave(code)
