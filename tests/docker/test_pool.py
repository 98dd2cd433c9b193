"""Containers that wait, on the real engine: taken at once, never twice, replaced when they die, removed by the next host."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from host import docker_client
from host.build import build_environment
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
    await until(lambda: warm_host.log.count("warm_container_died") == WARM)


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


async def test_an_image_built_anew_is_taken_over(tmp_path: Path) -> None:
    """What waits is of the new image soon, the session that lives goes on in the old one."""
    tag = "ors-host-test-anew:latest"
    await asyncio.to_thread(build_environment, environment(tmp_path, "old"), tag)
    with running_host(tag, warm=1, warm_max=1) as host:
        await until(lambda: len(waiting(host)) == 1)
        async with host.client() as client:
            old = await client.create()
            await asyncio.to_thread(build_environment, environment(tmp_path, "new"), tag)
            await until(lambda: " new_image_served " in host.log)
            new = await client.create()
            assert [(await session.call("version")).text for session in (old, new)] == ["old", "new"]
            await until(lambda: len(waiting(host)) == 1)
            ids = [container["ImageID"] for container in host.containers()]
            assert max(ids.count(each) for each in ids) == len(ids) - 1  # all but the old session's


def environment(folder: Path, version: str) -> Path:
    (folder / "env.py").write_text(f"""
from sandbox_runtime import Environment, TextBlock, ToolOutput, tool

class Anew(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{{"n": 1}}]

    def get_prompt(self):
        return [TextBlock(text="?")]

    @tool
    def version(self) -> ToolOutput:
        '''Tell.'''
        return ToolOutput(blocks=[TextBlock(text={version!r})])
""")
    return folder
