"""The engine restarts: with live-restore nobody notices, without it the sessions end in words and new ones can be made."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator

import aiohttp
import pytest

from host import docker_client
from tests.docker.harness import Session, running_host, until
from tests.lifecycle.second_engine import SecondEngine, second_engine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd") is None, reason="only root can start an engine, where there is one"
)


@pytest.fixture(scope="module")
def second(probe_image: str) -> Iterator[SecondEngine]:
    """A second engine that has the probe's image."""
    with second_engine() as engine:
        engine.start(live_restore=True)
        engine.load(probe_image)
        yield engine


async def ready(http: aiohttp.ClientSession) -> bool:
    """Ask ``/ready``; meanwhile ``/health`` is fine."""
    async with http.get("/health") as response:
        assert response.status == 200
    async with http.get("/ready") as response:
        return response.status == 200


@pytest.mark.timeout(180)
async def test_the_engine_restarts(probe_image: str, second: SecondEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", second.url)
    with running_host(probe_image, start_timeout=30) as host:
        async with host.client() as client:
            session = await client.create()
            async with session.calling("bash", command="sleep 2; echo survived") as stream:
                await asyncio.to_thread(second.kill)
                assert (await stream.reply()).text == "survived\n"
            await wait_ready(client.http, False)
            assert (await session.call("count")).text == "1"
            await asyncio.to_thread(second.start, live_restore=True)
            await wait_ready(client.http, True)
            assert (await session.call("count")).text == "2"
            killed = await client.create()
            with contextlib.closing(docker_client.connect()) as engine:
                engine.kill(host.inspect(killed.sid)["Id"])  # deaths are told again
            await until_ended(killed)

            await asyncio.to_thread(second.stop)
            await asyncio.to_thread(second.start, live_restore=False)  # ends what the one before left running
            await wait_ready(client.http, True)
            await until_ended(session)
            session = await client.create()
            async with session.calling("sleep_async", seconds=3600) as stream:
                await asyncio.to_thread(second.stop)  # and this one takes its containers with it
                reply = await stream.reply()
            assert reply.event == "error" and reply.data.startswith("container_died"), reply
            status, body = await session.post("/ping")
            assert (status, body["reason"]) == (410, "container_died")
            await wait_ready(client.http, False)
            await asyncio.to_thread(second.start, live_restore=False)
            await wait_ready(client.http, True)
            again = await client.create()
            assert (await again.call("count")).text == "1"
            async with client.http.post("/num_tasks", json={"split": "hard"}) as response:
                assert (response.status, await response.json()) == (200, {"num_tasks": 5})
            await again.delete()
            await until(lambda: host.containers(role="session") == [], 40)
            assert len(host.containers()) == 1


async def wait_ready(http: aiohttp.ClientSession, wanted: bool) -> None:
    async with asyncio.timeout(40):
        while await ready(http) is not wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def until_ended(session: Session) -> None:
    async with asyncio.timeout(5):
        while (await session.post("/ping"))[0] == 200:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
