"""Containers that die, runtimes that break the rules, an engine that fails, a host that stops: none of it is a reward."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from structlog.testing import capture_logs

from host.engine import EngineError, Role
from sandbox_runtime import frames, messages
from sandbox_runtime.messages import Fault
from tests.host.fakes import TAG, FakeEngine, FakeRuntime, Gate, ok, raising
from tests.host.served import SHUTDOWN, Serve, Server, being_made, secrets_header, until

SPEC: dict[str, Any] = {"task_spec": {"id": 0}}


async def is_fine(server: Server) -> None:
    """The host serves as if nothing had been."""
    server.engine.script.on_connect = None
    server.engine.script.handlers["call"] = ok()
    await server.create("after")
    assert (await server.call("after"))[-1][0] == "end"
    await server.delete("after")


# --- Death ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("death", "reason"),
    [
        ({"exit_code": 137}, "container_died: the container ended with exit code 137 (SIGKILL)"),
        (
            {"exit_code": 3, "log": "bye"},
            "container_died: the container ended with exit code 3; the end of its output:\nbye",
        ),
        ({"exit_code": 0}, "container_died: the container ended with exit code 0"),
        ({"exit_code": 137, "out_of_memory": True}, "out_of_memory: the container used more than its 2.0GiB of memory"),
    ],
)
async def test_container_that_dies_in_mid_call(
    server: Server, engine: FakeEngine, death: dict[str, Any], reason: str
) -> None:
    engine.script.handlers["call"] = Gate()
    container = await server.create()
    _call_id, call = await server.begin_call()
    await container.runtime.wait_received("call")
    await container.die(**death)
    assert await call == [("error", reason)]
    await until(lambda: engine.of(Role.SESSION) == [])
    assert await server.get("/prompt", "s1") == (410, {"detail": reason, "reason": reason.partition(":")[0]})
    assert "teardown" not in container.runtime.received
    await is_fine(server)


@pytest.mark.parametrize("method", ["setup", "prompt"])
async def test_container_that_dies_while_somebody_waits(server: Server, engine: FakeEngine, method: str) -> None:
    engine.script.handlers[method] = Gate()
    container = await server.create()
    prompt = asyncio.create_task(server.get("/prompt", "s1"))
    await container.runtime.wait_received(method)
    await container.die(137)
    status, body = await prompt
    assert (status, body["reason"]) == (410, "container_died")


async def test_container_that_dies_idle(server: Server, engine: FakeEngine) -> None:
    container = await server.create()
    await container.die(1)
    await until(lambda: len(server.sessions) == 0)
    assert (await server.post("/ping", "s1"))[0] == 410


async def test_container_that_dies_in_the_constructor(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["create"] = Gate()
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    container = await being_made(server, "s1", "create")
    await container.die(9, log="Traceback…")
    status, body = await creating
    assert (status, body["reason"]) == (422, "container_died")
    assert "Traceback…" in body["detail"]


async def test_container_that_dies_before_hello(server: Server, engine: FakeEngine) -> None:
    connected = asyncio.Event()

    async def silent(runtime: FakeRuntime) -> None:
        connected.set()

    engine.script.on_connect = silent
    creating = asyncio.create_task(server.post("/create", "s1", json=SPEC))
    await connected.wait()
    await engine.of(Role.SESSION)[0].die(78, log="ModuleNotFoundError: env")
    status, body = await creating
    assert (status, body["reason"]) == (503, "start_failed")
    assert "exit code 78" in body["detail"] and "ModuleNotFoundError: env" in body["detail"]
    await is_fine(server)


@pytest.mark.parametrize("log_fails", [False, True])
async def test_runtime_that_never_says_hello(serve: Serve, engine: FakeEngine, log_fails: bool) -> None:
    async def silent(runtime: FakeRuntime) -> None:
        runtime.container.log = "thinking…"

    async def refuse(name: str) -> None:
        raise EngineError("Read timed out")

    server = await serve(start_timeout_s=0.2)
    engine.script.on_connect = silent
    if log_fails:
        engine.hooks["log_tail"] = refuse
    status, body = await server.post("/create", "s1", json=SPEC)
    assert (status, body["reason"]) == (503, "start_timeout")
    assert "did not connect within 0.2 s" in body["detail"]
    assert log_fails or "thinking…" in body["detail"]
    await is_fine(server)


async def test_runtime_that_hangs_up(server: Server, engine: FakeEngine) -> None:
    container = await server.create()
    container.runtime.hang_up()
    await until(lambda: len(server.sessions) == 0)
    status, body = await server.post("/ping", "s1")
    assert (status, body["detail"]) == (410, "container_died: the runtime hung up, and its container goes on")


async def test_death_that_cannot_be_looked_up(server: Server, engine: FakeEngine) -> None:
    async def refuse(name: str) -> None:
        raise EngineError("Connection refused")

    engine.hooks["death"] = refuse
    container = await server.create()
    await container.die(1)
    await until(lambda: len(server.sessions) == 0)
    _status, body = await server.post("/ping", "s1")
    assert body["detail"] == "container_died: the container's end can't be looked up: Connection refused"


# --- Rubbish ----------------------------------------------------------------------------------------------------------

RUBBISH: list[Any] = [
    None,
    7,
    [],
    {},
    {"ok": True},
    {"ok": False},
    {"ok": "maybe", "error": "x"},
    {"ok": True, "output": {"blocks": []}},
    {"ok": True, "output": {"blocks": [{"type": "video"}]}},
    {"ok": True, "output": {"blocks": [{"type": "text", "text": 5}]}},
    ok(reward={"a": 1}),
    ok(reward="a lot"),
    ok(extra=1),
    ok(metadata=[1]),
]


@pytest.mark.parametrize("answer", RUBBISH)
async def test_answer_to_a_call_that_is_no_result(server: Server, engine: FakeEngine, answer: Any) -> None:
    engine.script.handlers["call"] = answer
    await server.create()
    _task_id, (name, data) = await server.call()
    assert name == "error"
    assert data.startswith("protocol_violation: the runtime's answer to call is not valid: ")
    await until(lambda: engine.of(Role.SESSION) == [])
    assert (await server.post("/ping", "s1"))[1]["reason"] == "protocol_violation"
    await is_fine(server)


@pytest.mark.parametrize(("method", "path"), [("prompt", "/prompt"), ("task_tools", "/task_tools")])
@pytest.mark.parametrize("answer", [None, 7, {"tools": 1}, [{"type": "x"}], "text"])
async def test_answer_to_a_question_that_is_none(
    server: Server, engine: FakeEngine, method: str, path: str, answer: Any
) -> None:
    engine.script.handlers[method] = answer
    await server.create()
    status, body = await server.get(path, "s1")
    assert (status, body["reason"]) == (410, "protocol_violation")
    await until(lambda: engine.of(Role.SESSION) == [])


def frame(message: Any) -> bytes:
    """Return anything as a frame."""
    body = json.dumps(message).encode()
    return len(body).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    "raw",
    [
        frame(messages.result(999, "an answer to no request")),
        frame(messages.request(1, "call", {"name": "x"})),
        frame(messages.notification("log", {})),
        frame([1, 2]),
        frame({"jsonrpc": "2.0", "id": 1, "result": 1, "error": {"code": 1, "message": "both"}}),
        frame({"jsonrpc": "2.0", "id": 3, "error": {"code": 1, "message": "no fault"}}),
        b"\x00\x00\x00\x05hello",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x00",
    ],
)
async def test_runtime_that_breaks_the_rules_in_mid_call(server: Server, engine: FakeEngine, raw: bytes) -> None:
    def misbehave(runtime: FakeRuntime, params: dict[str, Any]) -> Any:
        runtime.send_raw(raw)
        return ok(reward=1.0)

    engine.script.handlers["call"] = misbehave
    container = await server.create()
    neighbour = await server.create("neighbour")
    _task_id, (name, data) = await server.call()
    assert name == "error" and data.startswith("protocol_violation: ")
    await until(lambda: engine.of(Role.SESSION) == [neighbour])
    assert "teardown" not in container.runtime.received
    engine.script.handlers["call"] = ok()
    assert (await server.call("neighbour"))[-1][0] == "end"
    await is_fine(server)


# --- The engine -------------------------------------------------------------------------------------------------------


async def test_removal_that_is_refused_is_tried_again(server: Server, engine: FakeEngine) -> None:
    async def refuse(name: str) -> None:
        raise EngineError("device or resource busy")

    await server.create()
    engine.hooks["remove"] = refuse
    await server.delete()
    assert len(engine.of(Role.SESSION)) == 1
    del engine.hooks["remove"]
    assert await server.host.sweep() == 1
    assert engine.of(Role.SESSION) == []
    assert len(engine.of(Role.CATALOG)) == 1


# --- Shutting down ----------------------------------------------------------------------------------------------------


async def test_shutdown_ends_everything_with_one_word(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_sessions=2)
    engine.script.handlers["call"] = Gate()
    container = await server.create()
    _call_id, call = await server.begin_call()
    await container.runtime.wait_received("call")
    engine.script.handlers["create"] = Gate()
    creating = asyncio.create_task(server.post("/create", "s2", json=SPEC))
    await engine.wait_created(3)
    queued = asyncio.create_task(server.post("/create", "s3", json=SPEC))
    await until(lambda: server.pool.capacity.waiting == 1)
    await server.sessions.close_all(SHUTDOWN)
    reason = "host_shutdown: the server is shutting down"
    assert await call == [("error", reason)]
    assert await creating == await queued == (410, {"detail": reason, "reason": "host_shutdown"})
    assert container.runtime.received[-1] == "teardown"
    assert engine.of(Role.SESSION) == []
    async with server.client.post("/create", headers={"X-Session-ID": "s4"}, json=SPEC) as response:
        assert (response.status, response.headers["Retry-After"]) == (503, "10")
        assert (await response.json())["reason"] == "host_shutdown"
    assert (await server.post("/delete", "s1"))[0] == 200


# --- What is logged ---------------------------------------------------------------------------------------------------


async def test_secrets_tasks_and_results_are_not_logged(server: Server, engine: FakeEngine) -> None:
    secret, task, tool_input, result = "hush-secret", "hush-task", "hush-input", "hush-result"
    spec = {"task_spec": {"x": task}, "secrets": {"BODY": secret}}
    engine.script.handlers["call"] = ok(result)
    with capture_logs() as logs:
        await server.post("/create", "s1", json=spec, headers=secrets_header(HEADER=secret))
        await server.call(tool_input={"x": tool_input})
        await server.delete()
        engine.script.handlers["create"] = raising(Fault.ENVIRONMENT_RAISED, f"KeyError: {secret}")
        await server.post("/create", "s2", json=spec, headers=secrets_header(HEADER=secret))
        engine.script.handlers["create"] = None
        await server.post("/create", "s3", json=spec)
        await server.container("s3").die(1, log=secret)
        await until(lambda: len(server.sessions) == 0)
        await server.post("/create", "s4", json={**spec, "secrets": {"BODY": {secret: secret}}})
    assert [entry["event"] for entry in logs].count("session_ended") == 3
    assert "hush" not in repr(logs)


async def test_a_fault_of_our_own_is_a_500_and_leaves_nothing(server: Server, engine: FakeEngine) -> None:
    async def broken(name: str) -> None:
        raise ZeroDivisionError("hush")

    engine.hooks["create"] = broken
    with capture_logs() as logs:
        status, body = await server.post("/create", "s1", json=SPEC)
    assert (status, body) == (500, {"detail": "internal error: ZeroDivisionError", "reason": "internal"})
    assert "session_crashed" in [entry["event"] for entry in logs]
    del engine.hooks["create"]
    await is_fine(server)


async def test_oversized_task_is_refused(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_frame=10_000)
    status, body = await server.post("/create", "s1", json={"task_spec": {"x": "y" * 10_000}})
    assert (status, body["reason"]) == (400, "invalid_request")
    assert "over the limit of 10000 bytes" in body["detail"]
    await server.create()
    assert (await server.call(tool_input={"x": "y" * 10_000}))[-1][0] == "error"
    assert (await server.call())[-1][0] == "end"


async def test_answer_larger_than_a_message_may_be(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_frame=10_000)
    engine.script.handlers["call"] = ok("x" * 10_000)
    await server.create()
    _task_id, (name, data) = await server.call()
    assert name == "error"
    assert data.startswith("protocol_violation: a frame of ") and "over the limit of 10000 bytes" in data


def test_the_frame_helper_is_right() -> None:
    message = messages.result(1, TAG)
    assert frames.FrameDecoder().feed(frame(message)) == [message]
