"""A session over HTTP, from /create to /delete: who waits for what, and what is left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from host.engine import Role
from host.errors import Failure, Reason, SandboxFailed
from sandbox_runtime.messages import Fault
from tests.host.fakes import NO_ANSWER, TAG, FakeEngine, Faulty, Gate, raising
from tests.host.served import Serve, Server, being_made, until

SPEC: dict[str, Any] = {"task_spec": {"id": 0}}


# --- An episode -------------------------------------------------------------------------------------------------------


async def test_whole_episode(server: Server, engine: FakeEngine) -> None:
    container = await server.create("s1", split="train", index=1, secrets={"KEY": "x"}, toolset_name="small")
    assert await server.get("/bashenv/prompt", "s1") == (200, [{"text": "do it", "detail": None, "type": "text"}])
    tools = {"tools": [{"name": "bash", "description": "run", "input_schema": None}]}
    assert await server.get("/task_tools", "s1") == (200, tools)
    assert [name for name, _data in await server.call()] == ["task_id", "end"]
    await server.delete()
    runtime = container.runtime
    assert runtime.received == ["create", "setup", "prompt", "task_tools", "call", "teardown"]
    assert runtime.params["create"] == {
        "env": "BashEnv",
        "task_spec": {"id": 1},
        "secrets": {"KEY": "x"},
        "toolset_name": "small",
    }
    assert engine.of(Role.SESSION) == []


async def test_session_routes_go_by_the_session_not_by_the_path(server: Server) -> None:
    await server.create()
    assert (await server.get("/whatever/prompt", "s1"))[0] == 200
    assert (await server.get("/prompt", "s1"))[0] == 200


async def test_one_container_for_each_session(server: Server, engine: FakeEngine) -> None:
    names = {(await server.create(sid)).spec.name for sid in ("a", "b", "a2")}
    await server.delete("a")
    names.add((await server.create("a")).spec.name)
    assert len(names) == 4
    labels = server.container("a").spec.labels
    assert labels["ors-host.server"] == server.host.state.server_id
    assert labels["ors-host.role"] == "session"


async def test_which_have_ended_lately(server: Server) -> None:
    for sid in ("s1", "s2"):
        await server.create(sid, **SPEC)
        await server.delete(sid)
    assert server.sessions.ended_within(60) == ["s2", "s1"]
    assert server.sessions.ended_within(-1) == []
    await server.create("s1", **SPEC)
    assert server.sessions.ended_within(60) == ["s2"], "an id that is in use again has not ended"
    await server.delete("s1")
    assert server.sessions.ended_within(60) == ["s1", "s2"]


async def test_catalog_and_session_containers_are_alike(server: Server, engine: FakeEngine) -> None:
    session, (catalog,) = await server.create(), engine.of(Role.CATALOG)
    assert session.spec.image == catalog.spec.image
    assert session.spec.environment == catalog.spec.environment
    assert session.spec.limits == catalog.spec.limits
    assert session.spec.environment["PYTHONHASHSEED"].isdigit()


async def test_secrets_are_in_no_metadata_and_on_no_disk(server: Server) -> None:
    container = await server.create(secrets={"KEY": "hush-hush"}, task_spec={})
    assert "hush-hush" not in repr(container.spec)
    assert not [f for f in server.host.state.path.rglob("*") if f.is_file() and b"hush-hush" in f.read_bytes()]


async def test_prompt_is_asked_once_per_request(server: Server) -> None:
    container = await server.create()
    for _ in range(3):
        await server.get("/prompt", "s1")
    assert container.runtime.received.count("prompt") == 3


# --- Create -----------------------------------------------------------------------------------------------------------


async def test_concurrent_creates_with_one_id(server: Server, engine: FakeEngine) -> None:
    answers = await asyncio.gather(
        *(server.post("/create", "s1", json={"split": "train", "index": 0}) for _ in range(8))
    )
    assert sorted(status for status, _body in answers) == [200] + 7 * [400]
    for status, body in answers:
        if status == 400:
            assert body == {"detail": "Session already exists", "reason": "session_exists"}
    assert len(engine.of(Role.SESSION)) == 1


async def test_create_again_while_it_lives(server: Server) -> None:
    await server.create()
    assert (await server.post("/create", "s1", json=SPEC))[0] == 400


async def test_create_answers_after_constructor_and_before_setup(server: Server, engine: FakeEngine) -> None:
    create, setup = Gate(), Gate()
    engine.script.handlers.update(create=create, setup=setup)
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    container = await being_made(server, "s1", "create")
    assert not creating.done()
    assert await server.post("/ping", "s1") == (200, {"status": "ok"})
    create.opened.set()
    assert (await creating)[0] == 200
    await container.runtime.wait_received("setup")
    setup.opened.set()


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        (Fault.ENVIRONMENT_RAISED, 422, "setup_failed"),
        (Fault.INVALID_TOOLSET, 400, "invalid_request"),
        (Fault.BAD_REQUEST, 422, "setup_failed"),
    ],
)
async def test_constructor_that_fails(
    server: Server, engine: FakeEngine, fault: Fault, status: int, reason: str
) -> None:
    engine.script.handlers["create"] = raising(fault, "KeyError: no toolset 'x'")
    got, body = await server.post("/create", "s1", json=SPEC)
    assert (got, body["reason"]) == (status, reason)
    assert "no toolset 'x'" in body["detail"]
    assert engine.of(Role.SESSION) == []
    assert (await server.post("/ping", "s1"))[0] == 404
    engine.script.handlers["create"] = None
    await server.create()


async def test_constructor_that_takes_too_long(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(create_timeout_s=0.2)
    engine.script.handlers["create"] = NO_ANSWER
    status, body = await server.post("/create", "s1", json=SPEC)
    assert (status, body["reason"]) == (422, "setup_timeout")
    assert "constructor took longer than 0.2 s" in body["detail"]


async def test_image_gone_since_start_up(server: Server, engine: FakeEngine) -> None:
    del engine.images[TAG]
    async with server.client.post("/create", headers={"X-Session-ID": "s1"}, json=SPEC) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "2"
        body = await response.json()
    assert body["reason"] == "image_not_found"
    assert TAG in body["detail"]


@pytest.mark.parametrize("method", ["create", "start"])
async def test_engine_that_refuses(server: Server, engine: FakeEngine, method: str) -> None:
    async def refuse(name: str) -> None:
        raise SandboxFailed(Failure(Reason.START_FAILED, "no space left on device"))

    engine.hooks[method] = refuse
    status, body = await server.post("/create", "s1", json=SPEC)
    assert (status, body) == (503, {"detail": "start_failed: no space left on device", "reason": "start_failed"})
    del engine.hooks[method]
    await server.create()


# --- Before set-up is done --------------------------------------------------------------------------------------------


async def test_prompt_and_call_wait_for_setup_and_task_tools_do_not(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["setup"] = setup = Gate()
    container = await server.create()
    prompt = asyncio.create_task(server.get("/prompt", "s1"))
    _call_id, call = await server.begin_call()  # its task_id is out already
    assert (await server.get("/task_tools", "s1"))[0] == 200
    assert not prompt.done() and not call.done()
    assert container.runtime.received == ["create", "setup", "task_tools"]
    setup.opened.set()
    assert (await prompt)[0] == 200
    assert (await call)[0][0] == "end"


async def test_prompt_that_waited_long_enough(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(prompt_wait_s=0.1)
    engine.script.handlers["setup"] = Gate()
    container = await server.create()
    async with server.client.get("/prompt", headers={"X-Session-ID": "s1"}) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "2"
        assert response.headers["X-Backend-State"] == "starting"
        assert (await response.json())["detail"] == "Environment still starting."
    assert "prompt" not in container.runtime.received


async def test_call_before_create_has_answered(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["create"] = create = Gate()
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    container = await being_made(server, "s1", "create")
    status, body = await server.post("/call", "s1", json={"name": "bash", "input": {}})
    assert (status, body["reason"]) == (503, "starting")
    create.opened.set()
    assert (await creating)[0] == 200
    assert "call" not in container.runtime.received


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({}, "setup_failed: OSError: no data"),
        ({"setup_timeout_s": 0.3, "cancel_grace_s": 0.1}, "setup_timeout: setup() took longer than 0.3 s"),
    ],
)
async def test_setup_that_fails(serve: Serve, engine: FakeEngine, limits: dict[str, float], reason: str) -> None:
    server = await serve(**limits)
    setup = Gate(Faulty(Fault.ENVIRONMENT_RAISED, "OSError: no data"))
    engine.script.handlers["setup"] = NO_ANSWER if limits else setup
    container = await server.create()
    prompt = asyncio.create_task(server.get("/prompt", "s1"))
    _call_id, call = await server.begin_call()
    setup.opened.set()
    assert await call == [("error", reason)]
    gone = (410, {"detail": reason, "reason": reason.partition(":")[0]})
    assert await prompt == gone
    assert await server.call() == [("error", reason)]
    for method, path in (("GET", "/prompt"), ("GET", "/task_tools"), ("POST", "/ping")):
        assert await (server.get if method == "GET" else server.post)(path, "s1") == gone
    await until(lambda: engine.of(Role.SESSION) == [])
    assert container.runtime.received == ["create", "setup", "teardown"]
    assert await server.call() == [("error", reason)]
    await server.delete()
