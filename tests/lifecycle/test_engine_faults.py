"""An engine that is slow, wrong, silent or gone: the right answer to who asks, other sessions go on, nothing stays behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import pytest

from host import docker_client
from tests.docker.harness import Client, RunningHost, running_host, until
from tests.lifecycle.faulty_engine import ANYTHING, CREATE, LIST, REMOVE, START, FaultyEngine, faulty_engine

SLOW_S = 14.0
START_TIMEOUT_S = 11
"""Less than a slow engine takes, more than a container does on a machine that is busy."""


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyEngine]:
    """The engine in front of which this module's host stands."""
    with faulty_engine(tmp_path_factory.mktemp("engine")) as engine:
        yield engine


@pytest.fixture(scope="module")
def shared(faulty: FaultyEngine, probe_image: str) -> Iterator[RunningHost]:
    """One host for all tests of this module that don't set limits of their own."""
    with running_host(probe_image, env={"DOCKER_HOST": faulty.url}, start_timeout=START_TIMEOUT_S) as host:
        yield host


@pytest.fixture
async def host(shared: RunningHost, faulty: FaultyEngine) -> AsyncIterator[RunningHost]:
    """The shared host; afterwards nothing is left of any session."""
    yield shared
    faulty.heal()
    await until(lambda: shared.containers(role="session") == [] and len(shared.directories()) == 1, 30)


@pytest.fixture
async def client(host: RunningHost) -> AsyncIterator[Client]:
    async with host.client() as client:
        yield client


@asynccontextmanager
async def others_go_on(client: Client) -> AsyncIterator[None]:
    """While the block runs, another session is called and ``/health`` asked, again and again; both answer."""
    other = await client.create()
    done = asyncio.Event()
    seen = 0

    async def go_on() -> None:
        nonlocal seen
        while not done.is_set():
            seen += 1
            async with asyncio.timeout(5):
                assert (await other.call("count")).text == str(seen)
            async with asyncio.timeout(2), client.http.get("/health") as response:
                assert response.status == 200
            await asyncio.sleep(0.05)

    task = asyncio.create_task(go_on())
    try:
        yield
    finally:
        done.set()
        await task
    assert seen > 0
    await other.delete()


async def create(client: Client, sid: str, **fields: Any) -> tuple[int, Any, str | None]:
    """Ask for a session; return status, body and ``Retry-After``."""
    headers = {"X-Session-ID": sid}
    async with client.http.post("/create", json={"task_spec": {}, **fields}, headers=headers) as response:
        return response.status, await response.json(), response.headers.get("Retry-After")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (CREATE, {"status": 500}),
        (CREATE, {"status": 404}),
        (CREATE, {"status": 409}),
        (CREATE, {"lose": True}),
        (START, {"status": 500}),
        (START, {"status": 404}),
        (START, {"lose": True}),
    ],
    ids=lambda value: str(value[1]) if isinstance(value, tuple) else str(value),
)
async def test_a_start_that_fails_is_told_and_can_be_asked_for_again(
    host: RunningHost, client: Client, faulty: FaultyEngine, kind: tuple[str, str], fault: dict[str, Any]
) -> None:
    async with others_go_on(client):
        injected = faulty.inject(kind, times=1, **fault)
        status, body, retry_after = await create(client, "again")
        assert (status, retry_after) == (503, "2"), body
        assert body["reason"] == "start_failed"
        assert injected.hits == 1
        assert (await create(client, "again"))[0] == 200
        assert (await client.session("again").call("count")).text == "1"
        await client.session("again").delete()


async def test_a_slow_engine_is_waited_for_up_to_the_limit(
    host: RunningHost, client: Client, faulty: FaultyEngine
) -> None:
    """So long for a creation is too long here; the container that is made after all is removed."""
    async with others_go_on(client):
        slow = faulty.inject(CREATE, delay_s=SLOW_S, times=1)
        faulty.inject(START, delay_s=2, times=1)
        started = time.monotonic()
        status, body, retry_after = await create(client, "late")
        assert (status, body["reason"], retry_after) == (503, "start_timeout", "2")
        assert START_TIMEOUT_S <= time.monotonic() - started < SLOW_S
        assert (await create(client, "in-time"))[0] == 200
        await client.session("in-time").delete()
        await asyncio.sleep(max(0, started + SLOW_S + 0.5 - time.monotonic()))  # by now it is there, or was
        assert slow.hits == 1


async def test_an_engine_that_hangs(host: RunningHost, client: Client, faulty: FaultyEngine) -> None:
    async with others_go_on(client):
        doomed = await client.create()
        with faulty.hanging():
            started = time.monotonic()
            creating = asyncio.create_task(create(client, "hung"))
            deleting = asyncio.create_task(doomed.delete())
            while True:
                async with client.http.get("/ready") as response:
                    if response.status == 503:
                        assert "no answer within" in (await response.json())["detail"]
                        break
                assert time.monotonic() - started < 15
                await asyncio.sleep(0.2)
            status, body, _retry_after = await creating
            assert (status, body["reason"]) == (503, "start_timeout")
        await deleting
    async with asyncio.timeout(15):
        while True:
            async with client.http.get("/ready") as response:
                if response.status == 200:
                    break
            await asyncio.sleep(0.2)


@pytest.mark.parametrize(
    "fault",
    [{"status": 500, "times": 3}, {"status": 404, "times": 1}, {"lose": True, "times": 2}, {"delay_s": 3, "times": 1}],
    ids=str,
)
async def test_a_removal_that_fails_is_tried_again(
    host: RunningHost, client: Client, faulty: FaultyEngine, fault: dict[str, Any]
) -> None:
    async with others_go_on(client):
        session = await client.create()
        injected = faulty.inject(REMOVE, **fault)
        await session.delete()
        faulty.lift(injected)
        assert injected.hits >= 1
        await until(lambda: len(host.containers(role="session")) == 1, 25)


async def test_a_removal_in_progress_is_waited_for(host: RunningHost, client: Client, faulty: FaultyEngine) -> None:
    """Somebody else removes it, slowly: the delete is answered when that is done."""
    session = await client.create()
    injected = faulty.inject(REMOVE, status=409, times=1)
    deleting = asyncio.create_task(session.delete())
    await until(lambda: injected.hits == 1)
    (container,) = host.containers(role="session")
    assert not deleting.done()
    await asyncio.to_thread(_remove, container["Id"])
    await deleting
    assert host.containers(role="session") == []


async def test_what_cannot_be_listed_is_swept_later(host: RunningHost, client: Client, faulty: FaultyEngine) -> None:
    session = await client.create()
    refusing, blind = faulty.inject(REMOVE, status=500), faulty.inject(LIST, status=500)
    await session.delete()
    await until(lambda: blind.hits >= 1)
    faulty.lift(blind)
    await until(lambda: refusing.hits >= 3)
    assert len(host.containers(role="session")) == 1
    faulty.lift(refusing)
    await until(lambda: host.containers(role="session") == [])


async def test_what_was_not_removed_counts_against_the_limit(probe_image: str, engine: FaultyEngine) -> None:
    with running_host(probe_image, env={"DOCKER_HOST": engine.url}, max_sessions=1, queue_timeout=0.5) as host:
        async with host.client() as client:
            session = await client.create()
            fault = engine.inject(REMOVE, status=500)
            await session.delete()
            for _ in range(2):
                status, body, retry_after = await create(client, "next")
                assert (status, body["reason"], retry_after) == (503, "capacity", "2")
            assert len(host.containers(role="session")) == 1
            engine.lift(fault)
            async with asyncio.timeout(20):
                while (await create(client, "next"))[0] == 503:
                    assert len(host.containers(role="session")) <= 1
            await client.session("next").delete()


async def test_stopping_ends_in_time_although_the_engine_hangs(probe_image: str, engine: FaultyEngine) -> None:
    """What can't be removed is left to the next host, which finds it."""
    with running_host(probe_image, env={"DOCKER_HOST": engine.url}, shutdown_grace=4) as first:
        async with first.client() as client:
            session = await client.create()
            async with session.calling("sleep_async", seconds=3600) as stream:
                with engine.hanging(ANYTHING):
                    started = time.monotonic()
                    assert await asyncio.to_thread(first.stop) == 0
                    assert time.monotonic() - started < 4 + 6
                    reply = await stream.reply()
        assert reply.data.startswith("host_shutdown")
        with running_host(probe_image, state_dir=first.state_dir):
            assert first.containers(role="session") == []
            assert len(first.containers()) == 1


def _remove(container_id: str) -> None:
    with closing(docker_client.connect()) as engine:
        engine.remove_container(container_id, force=True)


async def test_a_start_under_faults_gets_there(probe_image: str, engine: FaultyEngine) -> None:
    """A host that starts while removals of what an earlier one left fail serves nevertheless, and removes it later."""
    with running_host(probe_image) as first:
        async with first.client() as client:
            creating = client.session()
            answer = asyncio.ensure_future(creating.post("/create", {"task_spec": {"construct": "sleep"}}))
            await until(lambda: first.containers(role="session"))
            first.kill()
            with pytest.raises(Exception, match="disconnected|reset|closed"):
                await answer
        fault = engine.inject(REMOVE, status=500)
        with running_host(probe_image, state_dir=first.state_dir, env={"DOCKER_HOST": engine.url}) as second:
            assert len(second.containers(role="session")) == 1
            engine.lift(fault)
            await until(lambda: second.containers(role="session") == [])
