"""What the public clients' parsers and retries do to a server that is not careful, each with the real client.

Two more are beside the other tests of the clients (``tests/docker/test_clients.py``): 5 MB, and 40 s without output.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.docker.harness import running_host

from .clients import CLIENTS, environments
from .cutting_proxy import Cut, cutting_proxy
from .servers import IMAGES

WHITE_SPACE = " \u00a0\t\u2028\u3000"
CLUSTERS = ("e\u0301", "👩\u200d👩\u200d👧", "🏳\ufe0f\u200d🌈", "\u0301\u0301", "क\u094d\u0937")


@asynccontextmanager
async def workshop(client: str, url: str, **task: Any) -> AsyncIterator[Any]:
    """A session of a client on the workshop."""
    async with environments(client, url) as api:
        environment = api.get("workshop")
        found = await environment.get_task("train", 0)
        found.task_spec.update(task)
        async with environment.session(found) as session:
            yield session


async def echo(session: Any, text: str) -> str:
    output = await session.call_tool("echo", {"text": text})
    return str(output.blocks[0].text)


@pytest.mark.parametrize("client", CLIENTS)
async def test_indented_output_arrives_whole_at_every_offset_around_4096(client: str, urls: dict[str, str]) -> None:
    async with workshop(client, urls["ors-sdk"]) as session:
        for offset in range(4096 - 80, 4096 + 20):
            text = "." * offset + " " * 60 + "x" + WHITE_SPACE * 10 + "y"
            assert await echo(session, text) == text, offset


@pytest.mark.parametrize("client", CLIENTS)
async def test_emoji_and_combining_characters_at_every_border(client: str, urls: dict[str, str]) -> None:
    async with workshop(client, urls["ors-sdk"]) as session:
        for offset in range(8):
            text = "." * offset + "".join(f"{cluster} " for cluster in CLUSTERS) * 1500
            assert await echo(session, text) == text, offset


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_connection_cut_during_a_call_runs_the_tool_once(client: str, cut: Cut, urls: dict[str, str]) -> None:
    async with cutting_proxy(urls["ors-sdk"]) as proxy, workshop(client, proxy.url) as session:
        proxy.cuts.append(cut)
        if cut is Cut.IN_THE_RESULT:
            text = "0123456789" * 2000
            assert await echo(session, text) == text
        else:
            assert (await session.call_tool("slow", {"seconds": 1})).blocks[0].text == "1"
        assert proxy.made == [cut]
        ran_before = 0 if cut is Cut.IN_THE_RESULT else 1
        assert (await session.call_tool("count")).blocks[0].text == str(ran_before + 1)


async def test_the_newer_client_rides_out_a_server_that_is_starting(urls: dict[str, str]) -> None:
    """A set-up that takes longer than a prompt may wait, and then no place for a second session."""
    assert urls  # the image is there
    with running_host(IMAGES["ors-sdk"], prompt_wait=0.2, max_sessions=1, queue_timeout=0.2) as host:
        async with environments("openreward", host.url) as api:
            task = await api.get("workshop").get_task("train", 0)
        refused = asyncio.Event()

        async def first() -> None:
            async with workshop("openreward", host.url, setup_s=3) as session:
                assert (await session.get_prompt())[0].text == "Prompt number 1."
                created.set()
                await refused.wait()

        async def second() -> None:
            await created.wait()
            async with environments("openreward", host.url) as api, api.get("workshop").session(task) as session:
                assert (await session.get_prompt())[0].text == "Prompt number 1."

        async def watch() -> None:
            while "sessions_refused" not in host.log:  # noqa: ASYNC110 - a process's log sets no event
                await asyncio.sleep(0.05)
            refused.set()

        created = asyncio.Event()
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for coroutine in (first(), second(), watch()):
                tasks.create_task(coroutine)
