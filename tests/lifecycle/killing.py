"""Ends that come from outside: what an operator, or the kernel, does to a container."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

from host import docker_client


def end_container(server_id: str, sid: str, how: str) -> bool:
    """End a session's container from outside; return whether there was one."""
    with contextlib.closing(docker_client.connect()) as engine:
        labels = [f"ors-host.server={server_id}", f"ors-host.session={sid}"]
        for container in engine.containers(filters={"label": labels}):
            with contextlib.suppress(docker_client.APIError, OSError):
                match how:
                    case "docker rm -f":
                        engine.remove_container(container["Id"], force=True)
                    case "docker kill":
                        engine.kill(container["Id"])
                    case _:
                        kill_runtime(engine.inspect_container(container["Id"])["State"]["Pid"])
                return True
    return False


def kill_runtime(init_pid: int) -> None:
    """SIGKILL to a container's runtime, which is the child of its init process."""
    for child in Path(f"/proc/{init_pid}/task/{init_pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
