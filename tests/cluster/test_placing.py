"""Sessions are spread over the nodes, never more than they take, and what is reserved is what the image's limits say."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.cluster.stage import SANDBOXES, Stage, wait_for
from tests.docker.harness import Client, RunningHost, Session

NODES = 3


async def test_sessions_are_spread(cluster: Stage, client: Client) -> None:
    sessions = [await client.create({"n": n}) for n in range(2 * NODES)]
    texts = await asyncio.gather(*(session.bash("echo mine > f; ls | wc -l") for session in sessions))
    assert set(texts) == {"1\n"}
    on = Counter(cluster.node_of(session.sid).address for session in sessions)
    assert sorted(on.values()) == [2, 2, 2]
    status, prompt = await sessions[3].get("/any/prompt")
    assert (status, prompt[0]["text"]) == (200, "task 3")
    await asyncio.gather(*(session.delete() for session in sessions))


async def test_what_is_reserved_is_what_the_session_may_use(cluster: Stage, client: Client) -> None:
    session = await client.create()
    (group,) = cluster.groups()
    assert group["name"] == f"ors-session-{session.sid}"
    assert group["bundle"] == {"ors_sandbox": 1.0, "CPU": 0.5, "memory": 256.0 * 2**20}
    node = cluster.node_of(session.sid)
    assert [each["address"] for each in cluster.observer.nodes() if each["id"] == group["node"]] == [node.address]
    await session.delete()
    wait_for(lambda: cluster.groups() == [], 5)


async def test_discovery_and_names(client: Client) -> None:
    for path, key in (("/list_environments", None), ("/probe/splits", None), ("/probe/tools", "tools")):
        async with client.http.get(path) as response:
            assert response.status == 200
            body = await response.json()
            assert body[key] if key else body
    async with client.http.post("/probe/tasks", json={"split": "train"}) as response:
        assert len((await response.json())["tasks"]) == 5
    status, body = await client.session().post("/create", {"env_name": "no such", "task_spec": {}})
    assert (status, body["reason"]) == (404, "unknown_environment")


async def test_a_session_that_never_was(client: Client) -> None:
    status, body = await client.session().post("/ping")
    assert (status, body["detail"]) == (404, "Active environment not found")
    await client.session().delete()


async def test_what_ended_is_told(cluster: Stage, client: Client) -> None:
    session = await client.create()
    await session.delete()
    status, body = await session.post("/ping")
    assert (status, body["reason"]) == (410, "deleted")
    await session.delete()
    died = await client.create()
    reply = await died.call("fail", what="os_exit")
    assert (reply.event, reply.data.partition(":")[0]) == ("error", "container_died")
    status, body = await died.post("/ping")
    assert (status, body["reason"]) == (410, "container_died")


async def test_creation_that_fails_gives_the_place_back(cluster: Stage, client: Client) -> None:
    status, body = await client.session().post("/create", {"task_spec": {"construct": "raise"}})
    assert (status, body["reason"]) == (422, "setup_failed"), body
    assert "construct was told to raise" in body["detail"]
    wait_for(lambda: cluster.groups() == [], 5)


@pytest.mark.timeout(180)
async def test_a_burst(cluster: Stage, shared_front: RunningHost, client: Client) -> None:
    """Three times as many as there is room for: each is served or told, there are never more than the nodes take."""
    most: Counter[str] = Counter()
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            for node in cluster.cluster.nodes:
                number = len(await asyncio.to_thread(cluster.host_of(node).containers, "session"))
                most[node.address] = max(most[node.address], number)
            await asyncio.sleep(0.1)

    watching = asyncio.create_task(watch())
    outcomes = Counter(await asyncio.gather(*(one(client, n) for n in range(3 * NODES * SANDBOXES))))
    done.set()
    await watching
    assert set(outcomes) <= {"served", "told"}
    assert outcomes["served"] >= NODES * SANDBOXES
    assert max(most.values()) == SANDBOXES
    assert " sessions_refused " in shared_front.log or not outcomes["told"]


async def one(client: Client, n: int) -> str:
    """Create, call, delete; return ``served``, or ``told`` if there was no place."""
    session = client.session()
    async with client.http.post("/create", json={"task_spec": {"n": n}}, headers=session.headers) as response:
        if response.status == 503:
            assert_told(dict(response.headers), await response.json())
            return "told"
        assert response.status == 200, await response.text()
    assert (await session.call("count")).text == "1"
    await session.delete()
    return "served"


def assert_told(headers: dict[str, str], body: dict[str, str]) -> None:
    assert headers["Retry-After"].isdigit()
    assert headers["X-Backend-State"] == "starting"
    assert body["reason"] == "capacity"


async def test_who_waits_gets_the_place_that_becomes_free(cluster: Stage, client: Client) -> None:
    """While it waits Ray knows of it, which is what an autoscaler acts on; who gives up leaves nothing."""
    sessions = await asyncio.gather(*(client.create() for _ in range(NODES * SANDBOXES)))
    waiting = client.session()
    answer = asyncio.create_task(waiting.post("/create", {"task_spec": {}}))
    await asyncio.to_thread(wait_for, lambda: [g for g in cluster.groups() if g["state"] == "PENDING"] != [], 5)
    async with client.http.get("/ready") as response:
        assert response.status == 503
    await sessions[0].delete()
    assert (await answer)[0] == 200
    assert (await waiting.call("count")).text == "1"
    late = client.session()
    async with client.http.post("/create", json={"task_spec": {}}, headers=late.headers) as response:
        assert response.status == 503
        assert_told(dict(response.headers), await response.json())
    assert len(cluster.groups()) == NODES * SANDBOXES
    await delete_all([*sessions[1:], waiting])


async def delete_all(sessions: list[Session]) -> None:
    await asyncio.gather(*(session.delete() for session in sessions))
