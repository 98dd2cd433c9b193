"""ors-host as an operator starts it: a process of its own, with a state directory of its own."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.episodes import Server
from bench.processes import tree
from bench.servers import free_port, running
from host import docker_client
from host.engine import LABEL_ROLE, LABEL_SERVER
from host.settings import Settings


@dataclass(frozen=True)
class OurHost:
    """A running ors-host."""

    server: Server
    pid: int
    server_id: str
    engine: docker_client.APIClient

    @property
    def pids(self) -> list[int]:
        """The host's processes."""
        return tree(self.pid)

    def containers(self, role: str | None = None) -> list[str]:
        """Return the ids of its containers that run, of one role or of all."""
        labels = [f"{LABEL_SERVER}={self.server_id}"] + ([f"{LABEL_ROLE}={role}"] if role else [])
        return [item["Id"] for item in self.engine.containers(filters={"label": labels})]

    def pattern(self) -> dict[str, Any]:
        """Return ``docker inspect`` of one of its containers: all of them are made alike."""
        data: dict[str, Any] = self.engine.inspect_container(self.containers()[0])
        return data


@asynccontextmanager
async def our_host(images: Sequence[str], *, max_sessions: int, warm: int | None = None) -> AsyncIterator[OurHost]:
    """Run ors-host until the block is left; whatever became of it, its containers are gone then.

    ``warm`` is how many containers of each image are kept ready: None as many as by default, 0 none ever.

    Raises:
        servers.ServerFailed: it ended, or didn't answer in time.
    """
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as folder:  # short: it holds unix sockets
        state, log = Path(folder) / "state", Path(folder) / "log"
        command = [sys.executable, "-m", "host", "serve", "--port", str(port), "--state-dir", str(state)]
        command += ["--max-sessions", str(max_sessions), "--queue-size", str(max_sessions)]
        command += [word for image in images for word in ("--image", image)]
        if warm is not None and has_warm_pool():
            command += ["--warm", str(warm), "--warm-max", str(max(warm, 1))]
        with contextlib.closing(docker_client.connect()) as engine:
            try:
                async with running(command, name="ors-host", port=port, environ={}, log=log, asking="/ready") as pid:
                    server_id = (state / "server-id").read_text()
                    yield OurHost(Server("ors-host", port), pid, server_id, engine)
            finally:
                if (file := state / "server-id").exists():
                    remove_all(engine, f"{LABEL_SERVER}={file.read_text()}")


def has_warm_pool() -> bool:
    """Return True if this version of ors-host keeps containers ready."""
    return "warm" in Settings.model_fields


def remove_all(engine: docker_client.APIClient, label: str) -> None:
    """Remove every container with a label; what is being removed already is left to whoever does it."""
    for item in engine.containers(all=True, filters={"label": label}):
        try:
            engine.remove_container(item["Id"], force=True, v=True)
        except docker_client.APIError as exc:
            if exc.status_code not in (404, 409):
                raise
