"""How a container ended is told as it was, within two seconds, and without anybody asking."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from host import docker_client
from tests.docker.conftest import client, host, shared_host
from tests.docker.harness import Client, RunningHost, Session
from tests.lifecycle.killing import kill_runtime

__all__ = ["client", "host", "shared_host"]

NOTICE_S = 2.0
ATTEMPTS = 3
"""A machine that does other things at the same time may be late once; a host that doesn't notice is late each time."""


def remove(container: dict[str, Any]) -> None:
    with contextlib.closing(docker_client.connect()) as engine:
        engine.remove_container(container["Id"], force=True)


def kill(container: dict[str, Any]) -> None:
    with contextlib.closing(docker_client.connect()) as engine:
        engine.kill(container["Id"])


def stop(container: dict[str, Any]) -> None:
    with contextlib.closing(docker_client.connect()) as engine:
        engine.stop(container["Id"], timeout=0)


def crash(container: dict[str, Any]) -> None:
    kill_runtime(container["State"]["Pid"])


@pytest.mark.parametrize(
    ("end", "reason", "words", "not_words"),
    [
        (remove, "container_died", "the container was removed from outside", "exit code"),
        (kill, "container_died", r"exit code 137 \(SIGKILL\), killed from outside through the engine", "removed"),
        (stop, "container_died", "exit code 1(37|43) .*, killed from outside through the engine", "removed"),
        (crash, "container_died", r"exit code 137 \(SIGKILL\)", "outside"),
        ("os_exit", "container_died", "exit code 9", "outside"),
        ("hog", "out_of_memory", "used more than its 512.0MiB of memory", "exit code"),
    ],
    ids=["docker rm -f", "docker kill", "docker stop", "SIGKILL to the runtime", "os._exit", "out of memory"],
)
async def test_told_apart(
    host: RunningHost,
    client: Client,
    end: Callable[[dict[str, Any]], None] | str,
    reason: str,
    words: str,
    not_words: str,
) -> None:
    late = []
    for _ in range(ATTEMPTS):
        session = await client.create()
        container = host.inspect(session.sid)
        if isinstance(end, str):
            call_id = await begin(session, "fail", what=end)
        else:
            call_id = await begin(session, "sleep_async", seconds=3600)
            await asyncio.to_thread(end, container)
        late.append(await noticed(host, session.sid, container["Id"]))
        status, body = await session.post("/ping")
        assert (status, body["reason"]) == (410, reason), body
        assert re.search(words, body["detail"]), body
        assert not_words not in body["detail"]
        status, body = await session.post("/any/call", {"name": "count", "input": {}, "task_id": call_id})
        assert (status, body["reason"]) == (410, reason)
        await session.delete()
        if late[-1] <= NOTICE_S:
            return
    raise AssertionError(f"noticed after {late} s")


async def begin(session: Session, name: str, **tool_input: Any) -> str:
    """Start a call and go away: nobody waits for the session from here on."""
    async with session.calling(name, **tool_input) as stream:
        assert stream.call_id is not None
        return stream.call_id


async def noticed(host: RunningHost, sid: str, container_id: str) -> float:
    """Wait until the host says that the session ended; return how long after the container's end that was, in seconds."""
    async with asyncio.timeout(20):
        while not any(" session_ended " in line and sid in line for line in host.log.splitlines()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    now = time.time()
    with contextlib.closing(docker_client.connect()) as engine:
        events = engine.events(
            since=int(now - 60), until=int(now + 1), decode=True, filters={"event": "die", "container": container_id}
        )
        (died,) = list(events)
    return float(now - died["timeNano"] / 1e9)
