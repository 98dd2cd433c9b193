"""Server processes: what they have in common, and ors-sdk's own. (Ours: ``ours.py``.)"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bench.episodes import Server
from bench.images import SDK_FOLDER
from bench.wire import Connection, RequestFailed, request_bytes

_START_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 90.0
_LOG_LINES = 30


class ServerFailed(Exception):
    """A server didn't start, or ended; the message has the end of its log."""


@asynccontextmanager
async def running(
    command: Sequence[str], *, name: str, port: int, environ: Mapping[str, str], log: Path, asking: str = "/health"
) -> AsyncIterator[int]:
    """Run a server until the block is left; its pid is given once it says 200 to ``asking``. Its output goes to ``log``.

    Raises:
        ServerFailed: it ended, or didn't answer in time.
    """
    with log.open("wb") as output:
        # In a session of its own: Ctrl-C reaches this process only, which then ends the server in order.
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **environ},
            start_new_session=True,
        )
    try:
        await _wait_healthy(process, name, port, log, asking)
        yield process.pid
        if process.returncode is not None:
            raise ServerFailed(f"{name} ended with exit code {process.returncode}:\n{_tail(log)}")
    finally:
        await _end(process)


@asynccontextmanager
async def sdk_server() -> AsyncIterator[Server]:
    """Run ors-sdk's own server with the environment in its process, as its ``Server.run()`` does it.

    Raises:
        ServerFailed: it ended, or didn't answer in time.
    """
    port = free_port()
    command = [sys.executable, str(SDK_FOLDER / "server.py")]
    with tempfile.TemporaryDirectory(prefix="ors-bench-") as folder:
        log = Path(folder) / "log"
        async with running(command, name="ors-sdk", port=port, environ={"PORT": str(port)}, log=log):
            yield Server("ors-sdk", port)


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGTERM)
    try:
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await process.wait()
    except BaseException:  # too slow, or this is told to stop a second time
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        raise


async def _wait_healthy(process: asyncio.subprocess.Process, name: str, port: int, log: Path, asking: str) -> None:
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            while True:
                if process.returncode is not None:
                    raise ServerFailed(f"{name} ended with exit code {process.returncode}:\n{_tail(log)}")
                with contextlib.suppress(OSError, RequestFailed):
                    connection = await Connection.connect(port)
                    try:
                        if (await connection.ask(request_bytes("GET", asking, {}))).status == 200:
                            return
                    finally:
                        connection.close()
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ServerFailed(f"{name} did not answer within {_START_TIMEOUT_S:g} s:\n{_tail(log)}") from None


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES:])
