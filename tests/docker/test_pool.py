"""Containers that wait, on the real engine: taken at once, never twice, replaced when they die, removed by the next host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest

from host import docker_client
from tests.docker.harness import Client, RunningHost, running_host, until

WARM = 2


@pytest.fixture(scope="module")
def warm_host(probe_image: str) -> Iterator[RunningHost]:
    with running_host(probe_image, warm=WARM, warm_max=WARM, max_sessions=8, memory="256MiB") as host:
        yield host


def waiting(host: RunningHost) -> set[str]:
    """Names of the containers that no session has, whose runtime has connected."""
    taken = {container["Id"] for container in host.session_containers()}
    names = {c["Names"][0] for c in host.containers(role="session") if c["Id"] not in taken and c["State"] == "running"}
    return names


async def test_sessions_take_what_waits(warm_host: RunningHost) -> None:
    """Each has a container of its own, nothing of another's, and one that waited if there was one."""
    await until(lambda: len(waiting(warm_host)) == WARM)
    before = waiting(warm_host)
    async with warm_host.client() as client:
        sessions = await asyncio.gather(*(client.create() for _ in range(6)))
        texts = await asyncio.gather(*(session.bash("ls -A | wc -l; echo mine > f") for session in sessions))
        assert set(texts) == {"0\n"}
        names = {warm_host.container(session.sid)["Names"][0] for session in sessions}
        assert len(names) == 6 and before <= names
        await asyncio.gather(*(session.delete() for session in sessions))
        assert names.isdisjoint(container["Names"][0] for container in warm_host.containers())
    await until(lambda: len(waiting(warm_host)) == WARM)


async def test_the_dead_are_replaced(warm_host: RunningHost) -> None:
    await until(lambda: len(waiting(warm_host)) == WARM)
    dead = waiting(warm_host)
    with contextlib.closing(docker_client.connect()) as engine:
        for name in dead:
            engine.remove_container(name.lstrip("/"), force=True)
    async with warm_host.client() as client:
        session = await client.create()
        assert await session.bash("echo alive") == "alive\n"
        await session.delete()
    await until(lambda: len(waiting(warm_host)) == WARM and not waiting(warm_host) & dead)
    assert "warm_container_died" in warm_host.log


async def test_the_next_host_removes_them(probe_image: str) -> None:
    """What waited was nobody's; the session that had one goes on in it."""
    with running_host(probe_image, warm=1, warm_max=1) as first:
        await until(lambda: len(waiting(first)) == 1)
        async with first.client() as client:
            session = await client.create()
            await session.call("count")
        await until(lambda: len(waiting(first)) == 1)
        old = waiting(first)
        first.kill()
        with running_host(probe_image, warm=1, warm_max=1, state_dir=first.state_dir) as second:
            async with second.client() as client:
                assert (await Client(client.http).session(session.sid).call("count")).text == "2"
            await until(lambda: len(waiting(second)) == 1 and not waiting(second) & old)
