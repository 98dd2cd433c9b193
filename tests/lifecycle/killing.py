"""Ends that come from outside: what an operator, or the kernel, does to a container."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from host import docker_client
from tests.docker.harness import RunningHost


def end_container(host: RunningHost, sid: str, how: str) -> bool:
    """End a session's container from outside; return whether there was one."""
    with (
        contextlib.closing(docker_client.connect()) as engine,
        contextlib.suppress(LookupError, docker_client.APIError, OSError),
    ):
        container = host.container(sid)["Id"]
        match how:
            case "docker rm -f":
                engine.remove_container(container, force=True)
            case "docker kill":
                engine.kill(container)
            case _:
                kill_runtime(engine.inspect_container(container)["State"]["Pid"])
        return True
    return False


def kill_runtime(init_pid: int) -> None:
    """SIGKILL to a container's runtime, which is the child of its init process."""
    for child in Path(f"/proc/{init_pid}/task/{init_pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
