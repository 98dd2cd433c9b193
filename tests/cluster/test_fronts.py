"""Several fronts on one cluster: any of them leads a session to its node, behind HAProxy as without it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.cluster.haproxy import balancing
from tests.cluster.stage import Stage
from tests.conformance.clients import CLIENTS, environments
from tests.docker.harness import Client, RunningHost


@pytest.fixture(scope="module")
def second_front(shared_stage: Stage) -> Iterator[RunningHost]:
    with shared_stage.front() as front:
        yield front


@pytest.fixture(scope="module")
def balanced(
    shared_front: RunningHost, second_front: RunningHost, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of HAProxy."""
    with balancing(tmp_path_factory.mktemp("haproxy") / "log", shared_front.url, second_front.url) as url:
        yield url


async def test_a_session_is_every_front_s(cluster: Stage, client: Client, second_front: RunningHost) -> None:
    session = await client.create({"n": 7})
    assert (await session.call("count")).text == "1"
    async with second_front.client() as through_second:
        same = through_second.session(session.sid)
        assert (await same.call("count")).text == "2"
        assert (await same.get("/any/prompt"))[1][0]["text"] == "task 7"
        status, body = await same.post("/create", {"task_spec": {}})
        assert (status, body["reason"]) == (400, "session_exists"), body
        async with session.calling(
            "bash", command="echo once >> /workspace/log; sleep 1; cat /workspace/log"
        ) as stream:
            call_id = stream.call_id
        assert (await same.call("bash", call_id=call_id, command="true")).text == "once\n"
        await same.delete()
    status, body = await session.post("/ping")
    assert (status, body["reason"]) == (410, "deleted")


async def test_one_session_created_through_both_at_once(
    cluster: Stage, client: Client, second_front: RunningHost
) -> None:
    """One is made, the other front says that it exists; only one container and one reservation are there."""
    async with second_front.client() as through_second:
        session = client.session()
        answers = await asyncio.gather(
            *(each.session(session.sid).post("/create", {"task_spec": {}}) for each in (client, through_second) * 2)
        )
        assert sorted(status for status, _ in answers) == [200, 400, 400, 400], answers
        assert len(cluster.groups()) == 1
        assert (await session.call("count")).text == "1"
        await session.delete()


@pytest.mark.parametrize("name", CLIENTS)
async def test_episodes_through_haproxy(cluster: Stage, balanced: str, name: str) -> None:
    """Whole ones, with the public clients, several at a time: requests of one session go through both fronts."""

    async def episode(api: Any, n: int) -> None:
        environment = api.get("probe")
        async with environment.session(await environment.get_task("train", n)) as session:
            assert (await session.get_prompt())[0].text == f"task {n}"
            for count in range(1, 4):
                assert (await session.call_tool("count")).blocks[0].text == str(count)
            assert (await session.call_tool("finish")).finished

    async with environments(name, balanced) as api:
        await asyncio.gather(*(episode(api, n % 5) for n in range(6)))


async def test_a_front_ends_behind_haproxy(cluster: Stage, shared_front: RunningHost, tmp_path: Path) -> None:
    """What it was asked just then is asked again by the client and answered by the other; HAProxy itself repeats no call."""
    with cluster.front() as leaving, balancing(tmp_path / "log", shared_front.url, leaving.url) as url:
        async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(60)) as http:
            session = await Client(http).create()
            leaving.kill()
            for n in range(1, 9):
                for _ in range(50):
                    reply = await called(session, f"trace-{n}")
                    if reply is not None:
                        break
                    await asyncio.sleep(0.1)
                assert reply == str(n)
            await session.delete()


async def called(session: Any, call_id: str) -> str | None:
    """Return a call's text, None if the connection was cut or could not be had."""
    body = {"name": "count", "input": {}, "task_id": call_id}
    try:
        async with session.http.post("/any/call", json=body, headers=session.headers) as response:
            if response.status == 200:
                return str((await session.call("count", call_id)).text)
            assert response.status in (502, 503), await response.text()
    except aiohttp.ClientError:
        pass
    return None
