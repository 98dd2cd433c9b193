"""How sessions end: deleted at any moment, expired, refused for want of a place. Nothing of them is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from host.engine import Role
from sandbox_runtime.messages import Fault
from tests.host.fakes import NO_ANSWER, FakeEngine, Gate, raising
from tests.host.served import Serve, Server, being_made, until

SPEC: dict[str, Any] = {"task_spec": {"id": 0}}


async def test_unknown_session(server: Server) -> None:
    expected = (404, {"detail": "Active environment not found", "reason": "unknown_session"})
    assert await server.get("/prompt", "s1") == expected
    assert await server.get("/task_tools", "s1") == expected
    assert await server.post("/ping", "s1") == expected
    assert await server.post("/call", "s1", json={"name": "bash", "input": {}}) == expected


async def test_after_delete_everything_is_410_and_the_id_is_free(server: Server) -> None:
    await server.create()
    await server.delete()
    expected = (410, {"detail": "deleted: the session was deleted", "reason": "deleted"})
    assert await server.get("/prompt", "s1") == expected
    assert await server.get("/task_tools", "s1") == expected
    assert await server.post("/ping", "s1") == expected
    assert await server.post("/call", "s1", json={"name": "bash", "input": {}}) == expected
    await server.create()
    assert (await server.get("/prompt", "s1"))[0] == 200


@pytest.mark.parametrize("path", ["/delete", "/delete_session"])
async def test_delete_is_always_fine(server: Server, path: str) -> None:
    assert await server.post(path, "never") == (200, {"sid": "never"})
    await server.create()
    for _ in range(2):
        assert await server.post(path, "s1", data=b"any body") == (200, {"sid": "s1"})


async def test_concurrent_deletes_all_wait_for_the_end(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["teardown"] = teardown = Gate()
    container = await server.create()
    deletes = [asyncio.create_task(server.post("/delete", "s1")) for _ in range(3)]
    await container.runtime.wait_received("teardown")
    assert not any(delete.done() for delete in deletes)
    assert (await server.post("/create", "s1", json=SPEC))[0] == 400
    assert (await server.post("/ping", "s1"))[0] == 410
    teardown.opened.set()
    assert await asyncio.gather(*deletes) == 3 * [(200, {"sid": "s1"})]
    assert engine.of(Role.SESSION) == []


@pytest.mark.parametrize("method", ["create", "start"])
async def test_delete_while_the_container_is_made(server: Server, engine: FakeEngine, method: str) -> None:
    reached, go_on = asyncio.Event(), asyncio.Event()

    async def slow(name: str) -> None:
        reached.set()
        await go_on.wait()

    engine.hooks[method] = slow
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    await reached.wait()
    deleting = asyncio.create_task(server.post("/delete", "s1"))
    await until(lambda: any(session.failure for session in server.sessions))
    go_on.set()
    assert await deleting == (200, {"sid": "s1"})
    assert (await creating)[0] == 410
    assert engine.of(Role.SESSION) == []
    assert server.pool.capacity.free == server.pool.capacity.limit


@pytest.mark.parametrize("method", ["create", "setup"])
async def test_delete_while_the_environment_is_made(server: Server, engine: FakeEngine, method: str) -> None:
    engine.script.handlers[method] = Gate()
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    await being_made(server, "s1", method)
    await server.delete()
    assert (await creating)[0] == (410 if method == "create" else 200)
    assert engine.of(Role.SESSION) == []


async def test_delete_during_setup_runs_no_call(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["setup"] = Gate()
    container = await server.create()
    _call_id, call = await server.begin_call()
    await server.delete()
    assert await call == [("error", "deleted: the session was deleted")]
    assert "call" not in container.runtime.received


@pytest.mark.parametrize("answer", [NO_ANSWER, raising(Fault.ENVIRONMENT_RAISED, "ValueError: no")])
async def test_teardown_that_fails_delays_but_does_not_stop_the_end(
    serve: Serve, engine: FakeEngine, answer: Any
) -> None:
    server = await serve(teardown_timeout_s=0.1)
    engine.script.handlers["teardown"] = answer
    await server.create()
    await server.delete()
    assert engine.of(Role.SESSION) == []


async def test_idle_session_expires(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(idle_timeout_s=0.2)
    container = await server.create()
    await until(lambda: len(server.sessions) == 0)
    status, body = await server.get("/prompt", "s1")
    assert (status, body["reason"]) == (410, "expired")
    assert body["detail"] == "expired: no request for 0.2 s"
    assert container.runtime.received[-1] == "teardown"


async def test_call_in_flight_is_not_idle_even_without_its_client(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(idle_timeout_s=0.2)
    engine.script.handlers["call"] = call = Gate()
    await server.create("busy")
    async with server.open_call("busy") as (events, _response):
        await anext(events)
    await server.create("idle")
    await until(lambda: len(server.sessions) == 1)  # the younger one expired first
    assert (await server.post("/ping", "busy"))[0] == 200
    call.opened.set()
    await until(lambda: len(server.sessions) == 0)


async def test_pings_keep_a_session(serve: Serve) -> None:
    server = await serve(idle_timeout_s=0.4)
    await server.create("pinged")
    await server.create("idle")
    while len(server.sessions) == 2:
        assert (await server.post("/ping", "pinged"))[0] == 200
    assert (await server.post("/ping", "pinged"))[0] == 200


async def test_maximum_age_holds_for_busy_sessions_too(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_age_s=0.3)
    engine.script.handlers["call"] = Gate()
    await server.create()
    _call_id, call = await server.begin_call()
    assert await call == [("error", "expired: the session reached its maximum age of 0.3 s")]
    assert (await server.post("/ping", "s1"))[0] == 410


# --- Capacity ---------------------------------------------------------------------------------------------------------


async def test_capacity_queue(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_sessions=1, queue_size=1)
    await server.create("first")
    waiting = asyncio.create_task(server.post("/create", "second", json=SPEC))
    await until(lambda: server.pool.capacity.waiting == 1)
    async with server.client.post("/create", headers={"X-Session-ID": "third"}, json=SPEC) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "2"
        assert response.headers["X-Backend-State"] == "starting"
        assert (await response.json())["reason"] == "capacity"
    assert (await server.post("/ping", "third"))[0] == 404
    assert len(engine.of(Role.SESSION)) == 1
    await server.delete("first")
    assert (await waiting)[0] == 200
    assert len(engine.of(Role.SESSION)) == 1


async def test_capacity_queue_has_a_time_limit(serve: Serve) -> None:
    server = await serve(max_sessions=1, queue_timeout_s=0.1)
    await server.create("first")
    status, body = await server.post("/create", "second", json=SPEC)
    assert (status, body["reason"]) == (503, "capacity")
    assert "none became free within 0.1 s" in body["detail"]


async def test_delete_in_the_queue(serve: Serve) -> None:
    server = await serve(max_sessions=1)
    await server.create("first")
    waiting = asyncio.create_task(server.post("/create", "second", json=SPEC))
    await until(lambda: server.pool.capacity.waiting == 1)
    await server.delete("second")
    assert (await waiting)[0] == 410
    assert server.pool.capacity.waiting == 0
    await server.delete("first")
    await server.create("third")


async def test_a_failed_creation_gives_its_place_back(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_sessions=1)
    engine.script.handlers["create"] = raising(Fault.ENVIRONMENT_RAISED, "ValueError: no")
    for _ in range(3):
        assert (await server.post("/create", "s1", json=SPEC))[0] == 422
    engine.script.handlers["create"] = None
    await server.create()
