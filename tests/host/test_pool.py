"""Sandboxes that wait: handed over once, within the capacity, replaced when they die, in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from host import pool as pool_module
from host.engine import LABEL_ROLE, Role
from host.errors import Failure, Reason, SandboxFailed
from tests.host.fakes import TAG, FakeContainer, FakeEngine, FakeRuntime, Gate
from tests.host.served import SHUTDOWN, Serve, Server, until

OTHER = "other-env:1"
SPEC: dict[str, Any] = {"task_spec": {"id": 0}}


async def filled(server: Server, count: int) -> list[FakeContainer]:
    """Wait until so many sandboxes wait; return their containers."""
    await until(lambda: server.pool.waiting == count)
    return [c for c in server.engine.of(Role.SESSION) if server.sid_of(c) is None]


async def test_a_session_gets_one_that_waits(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=2)
    waiting = await filled(server, 2)
    assert all(container.runtime.received == [] for container in waiting)
    engine.hooks["create"] = refuse
    container = await server.create()
    assert container in waiting
    assert container.runtime.received.count("create") == 1
    del engine.hooks["create"]
    await until(lambda: server.pool.waiting == 2)
    await server.delete()
    assert container not in engine.containers.values()


async def test_each_is_given_to_one_session(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=3, max_sessions=20)
    await filled(server, 3)
    containers = await asyncio.gather(*(server.create(f"s{n}") for n in range(12)))
    assert len({container.spec.name for container in containers}) == 12
    for n, container in enumerate(containers):
        assert server.sid_of(container) == f"s{n}"
        assert container.runtime.received.count("create") == 1


async def test_what_waits_counts(serve: Serve, engine: FakeEngine) -> None:
    """Never more containers than sessions may be, and all of them may be sessions."""
    most = watch_most(engine)
    server = await serve(warm=8, max_sessions=3, queue_timeout_s=0.2)
    await filled(server, 3)
    assert server.pool.capacity.free == 0 and server.pool.room == 3
    assert (await server.get("/ready"))[0] == 200
    for n in range(3):
        await server.create(f"s{n}")
    assert (await server.get("/ready"))[0] == 503
    status, body = await server.post("/create", "s3", json=SPEC)
    assert (status, body["reason"]) == (503, "capacity")
    await server.delete("s0")
    await server.create("s3")
    assert most() == 3


async def test_what_waits_for_other_images_makes_room(serve: Serve, engine: FakeEngine) -> None:
    engine.add_image(OTHER).environments = ["OtherEnv"]
    most = watch_most(engine)
    server = await serve(tags=(TAG, OTHER), warm=1, max_sessions=2)
    await filled(server, 2)
    one = await server.create("s1")
    await until(lambda: server.pool.capacity.free == 0)
    two = await server.create("s2")
    assert {one.spec.image.tag, two.spec.image.tag} == {TAG}
    assert server.pool.waiting == 0
    assert most() == 2


async def test_one_that_is_being_started_is_waited_for(serve: Serve, engine: FakeEngine) -> None:
    gate = Gate()
    engine.script.on_connect = held(gate)
    server = await serve(warm=1, warm_max=1)
    await engine.wait_created(2)
    (starting,) = engine.of(Role.SESSION)
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    await until(lambda: len(server.sessions) == 1)
    assert not creating.done()
    gate.opened.set()
    assert (await creating)[0] == 200
    assert server.container("s1") is starting


async def test_a_session_that_is_ended_while_it_waits_for_one(serve: Serve, engine: FakeEngine) -> None:
    gate = Gate()
    engine.script.on_connect = held(gate)
    server = await serve(warm=1, warm_max=1, max_sessions=1)
    await engine.wait_created(2)
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    await until(lambda: len(server.sessions) == 1)
    await server.delete("s1")
    assert (await creating)[0] == 410
    gate.opened.set()
    (waiting,) = await filled(server, 1)
    assert await server.create("s2") is waiting


async def test_the_dead_are_replaced(serve: Serve, engine: FakeEngine, quick: None) -> None:
    server = await serve(warm=2)
    one, two = await filled(server, 2)
    await asyncio.gather(one.die(137), two.die(1))
    names = {one.spec.name, two.spec.name}
    await until(lambda: not names & engine.containers.keys() and server.pool.waiting == 2)
    assert server.pool.capacity.free == server.pool.capacity.limit - 2


async def test_the_dead_are_not_handed_over(serve: Serve, engine: FakeEngine) -> None:
    """Also in the instant before their death is found out about."""
    looked_up = asyncio.Event()

    async def slow(name: str) -> None:
        await looked_up.wait()

    server = await serve(warm=1, warm_max=1)
    (waiting,) = await filled(server, 1)
    engine.hooks["death"] = slow
    await waiting.die(137)
    container = await server.create()
    assert container is not waiting
    looked_up.set()


async def test_one_that_does_not_start_is_nobodys_trouble(serve: Serve, engine: FakeEngine, quick: None) -> None:
    server = await serve(warm=1, warm_max=1)
    await filled(server, 1)
    engine.hooks["start"] = refuse
    container = await server.create("s1")
    status, body = await server.post("/create", "s2", json=SPEC)
    assert (status, body["reason"]) == (503, "start_failed")
    attempts = engine.calls["create"]
    await until(lambda: engine.calls["create"] > attempts)
    del engine.hooks["start"]
    await filled(server, 1)
    assert container in engine.containers.values()


def test_a_pause_is_longer_each_time_but_once_for_all() -> None:
    pause = pool_module._Pause()
    assert [pause.failed(now) for now in (0.0, 0.1, 1.0, 3.0)] == [1.0, 1.0, 2.0, 4.0]
    for now in range(100, 2000, 100):
        pause.failed(now)
    assert pause.failed(2000) == 60
    pause.worked()
    assert pause.failed(3000) == 1.0


async def test_follows_demand(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=1, warm_max=4, max_sessions=20)
    await filled(server, 1)
    await asyncio.gather(*(server.create(f"s{n}") for n in range(6)))
    await filled(server, 4)


async def test_short_of_memory(serve: Serve, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    server = await serve(warm=2)
    await filled(server, 2)
    monkeypatch.setattr(server.pool, "_memory_is_short", lambda: True)
    server.pool._changed.set()
    await until(lambda: engine.of(Role.SESSION) == [])
    await server.create()


async def test_none(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=0)
    await server.create()
    await server.delete()
    assert engine.created == 2  # the catalog's, and the session's


async def test_nothing_waits_any_more_at_the_end(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(warm=3)
    await filled(server, 3)
    await server.create()
    server.pool.close()
    await server.sessions.close_all(SHUTDOWN)
    await server.pool.wait_closed()
    assert engine.of(Role.SESSION) == []
    assert server.pool.capacity.free == server.pool.capacity.limit


# --- Helpers ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses that a test needn't wait for."""
    monkeypatch.setattr(pool_module, "_FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(pool_module, "_LOOK_S", 0.02)


async def refuse(name: str) -> None:
    raise SandboxFailed(Failure(Reason.START_FAILED, "the engine refuses"))


def held(gate: Gate) -> Callable[[FakeRuntime], Any]:
    """A runtime that says hello when it is let to."""

    async def hold(runtime: FakeRuntime) -> None:
        with suppress(asyncio.CancelledError):
            await gate.opened.wait()
            runtime.send(runtime.hello_message(runtime.container.spec.socket_dir))

    return hold


def watch_most(engine: FakeEngine) -> Callable[[], int]:
    """Return a function that tells how many sessions' containers there were at most."""
    most = 0

    async def count(name: str) -> None:
        nonlocal most
        now = [c for c in engine.containers.values() if c.spec.labels[LABEL_ROLE] == Role.SESSION]
        most = max(most, len(now))

    engine.hooks["start"] = count
    return lambda: most
