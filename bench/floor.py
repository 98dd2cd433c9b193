"""The floor: what the engine itself takes, by docker-py alone, for a container made with the very options that ours are.

Create, start, the first byte of a bare Python on a unix socket; and the removal. The options are read from a container of the
host that is measured, so they are the same whatever they become: image, network, capabilities, security options, init, limits,
file systems in memory, log options, mounts, variables, user.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host import docker_client
from host.engine import RUNTIME_DIR
from sandbox_runtime.frames import FrameDecoder

LABEL = "ors-host.bench"
"""On every container that the benchmark makes itself; the value is its process id."""

_SOCKET = "host.sock"
_FIRST_BYTE = f"""
import _socket
s = _socket.socket(_socket.AF_UNIX)
s.connect("{RUNTIME_DIR}/{_SOCKET}")
s.send(b"x")
s.recv(1)
"""
_BARE_PYTHON = ("python", "-I", "-S", "-c", _FIRST_BYTE)
_BARE_IMPORTS = (
    "python",
    "-P",
    "-c",
    f"""
import asyncio, socket
from pydantic import BaseModel
class Words(BaseModel):
    text: str
s = socket.socket(socket.AF_UNIX)
s.connect("{RUNTIME_DIR}/{_SOCKET}")
s.send(b"\\0\\0\\0\\2{{}}")
s.recv(1)
""",
)
_STAMPED = ("bash", "-c", 'echo "$EPOCHREALTIME"; exec "$@"', "-")
"""Prints the time, to the microsecond, and becomes the command that follows."""

_TIMEOUT_S = 60.0
_KEPT = ("Image", "Env", "User", "Hostname", "WorkingDir")


@dataclass(frozen=True)
class Cycle:
    """The times of one container, in seconds."""

    start_s: float
    remove_s: float


class Floor:
    """Makes containers like ``pattern`` (``docker inspect`` of one)."""

    def __init__(self, engine: docker_client.APIClient, pattern: Mapping[str, Any]) -> None:
        self._engine = engine
        self._pattern = pattern

    def cycle(self) -> Cycle:
        """Start one container, wait for its first byte, remove it.

        Raises:
            docker_client.ERRORS, TimeoutError: the engine refused, or no byte came.
        """
        with self._directory() as (directory, listener):
            begin = time.perf_counter()
            with self._container(directory, _BARE_PYTHON) as container:
                self._engine.start(container)
                with _accepted(listener) as connection:
                    connection.recv(1)
                    started = time.perf_counter()
                    self._engine.remove_container(container, force=True, v=True)
                    removed = time.perf_counter()
        return Cycle(started - begin, removed - started)

    def runtime_start_s(self) -> float:
        """Start the image's own command and return the time from its first instruction (exec) to the end of its hello.

        Raises:
            docker_client.ERRORS, TimeoutError: the engine refused, or no hello came.
        """
        return self._time_to_first_message_s(self.command)

    def imports_alone_s(self) -> float:
        """Return the same of a bare Python that imports asyncio, makes one pydantic model, and says something.

        Raises:
            docker_client.ERRORS, TimeoutError: the engine refused, or it said nothing.
        """
        return self._time_to_first_message_s(_BARE_IMPORTS)

    def _time_to_first_message_s(self, command: Sequence[str]) -> float:
        with self._directory() as (directory, listener):
            (directory / "token").write_text("-")
            with self._container(directory, [*_STAMPED, *command]) as container:
                self._engine.start(container)
                said_at = _hello_at(listener)
                return said_at - float(self._engine.logs(container).split()[0])

    def import_times(self) -> str:
        """Start the image's own command and return what ``python -X importtime`` says of it."""
        python, *arguments = self.command
        with self._directory() as (directory, listener):
            (directory / "token").write_text("-")
            with self._container(directory, [python, "-X", "importtime", *arguments]) as container:
                self._engine.start(container)
                _hello_at(listener)
                output: bytes = self._engine.logs(container)
                return output.decode(errors="replace")

    @property
    def command(self) -> list[str]:
        """What the pattern's container runs."""
        config = self._pattern["Config"]
        return [*(config["Entrypoint"] or ()), *(config["Cmd"] or ())]

    @contextmanager
    def _directory(self) -> Iterator[tuple[Path, socket.socket]]:
        directory = Path(tempfile.mkdtemp(prefix="ors-bench-", dir="/tmp"))
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.bind(str(directory / _SOCKET))
            listener.listen()
            listener.settimeout(_TIMEOUT_S)
            os.chmod(directory, 0o755)
            os.chmod(directory / _SOCKET, 0o666)
            yield directory, listener
        finally:
            listener.close()
            shutil.rmtree(directory, ignore_errors=True)

    @contextmanager
    def _container(self, directory: Path, command: Sequence[str]) -> Iterator[str]:
        config = {name: self._pattern["Config"][name] for name in _KEPT}
        host_config = copy.deepcopy(self._pattern["HostConfig"])
        for mount in host_config["Mounts"]:
            if mount["Target"] == RUNTIME_DIR:
                mount["Source"] = str(directory)
        labels = {LABEL: str(os.getpid())}
        config |= {"Entrypoint": list(command), "Cmd": [], "Labels": labels, "HostConfig": host_config}
        container: str = self._engine.create_container_from_config(config)["Id"]  # type: ignore[no-untyped-call]
        try:
            yield container
        finally:
            with contextlib.suppress(docker_client.NotFound):
                self._engine.remove_container(container, force=True, v=True)


@contextmanager
def _accepted(listener: socket.socket) -> Iterator[socket.socket]:
    connection, _ = listener.accept()
    with connection:
        connection.settimeout(_TIMEOUT_S)
        yield connection


def _hello_at(listener: socket.socket) -> float:
    """Wait for the first message on the first connection; return when it was there (seconds since the epoch)."""
    decoder = FrameDecoder()
    with _accepted(listener) as connection:
        while not decoder.feed(connection.recv(65536)):
            pass
        return time.time()
