"""Tool calls over HTTP: run at most once, whatever becomes of the connection."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from host import streams
from host.engine import Role
from sandbox_runtime.messages import Fault
from tests.host.fakes import NO_ANSWER, FakeEngine, FakeRuntime, Gate, ok, raising
from tests.host.served import Serve, Server, result_of, until


async def test_result(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = ok("x", reward=1, finished=True, metadata={"a": [1]})
    await server.create()
    output = {"blocks": [{"text": "x", "detail": None, "type": "text"}], "metadata": {"a": [1]}}
    assert result_of(await server.call()) == {"ok": True, "output": {**output, "reward": 1.0, "finished": True}}


async def test_all_fields_are_always_there(server: Server) -> None:
    await server.create()
    assert set(result_of(await server.call())["output"]) == {"blocks", "metadata", "reward", "finished"}


async def test_input_reaches_the_runtime_as_it_is(server: Server) -> None:
    container = await server.create()
    tool_input = {
        "text": "a\u2028\u00a0 \U0001f600\x00\r\n",
        "n": [1, 2.5, None, True],
        "deep": {"": {}},
        "big": 10**30,
    }
    await server.call(tool_input=tool_input)
    params = container.runtime.params["call"]
    assert (params["name"], params["input"]) == ("bash", tool_input)
    assert params["call_id"].startswith("call_")


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("'x' is not a valid tool", "not_found"),
        ("Tool input validation error: command", "input_validation"),
        ("the episode is finished", "episode_finished"),
    ],
)
async def test_tool_that_was_not_run(server: Server, engine: FakeEngine, error: str, reason: str) -> None:
    engine.script.handlers["call"] = {"ok": False, "error": error, "reason": reason}
    await server.create()
    assert result_of(await server.call()) == {"ok": False, "error": error, "reason": reason}


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        (Fault.ENVIRONMENT_RAISED, "ValueError: one\ntwo\n\n  three"),
        (Fault.BAD_RESULT, "the tool returned a reward that is not a number: nan"),
        (Fault.RESULT_TOO_LARGE, "the result of 99 bytes is over the limit"),
        (Fault.CANCELLED, "cancelled"),
        (Fault.ENVIRONMENT_RAISED, ""),
    ],
)
async def test_tool_that_raises_and_the_session_goes_on(
    server: Server, engine: FakeEngine, fault: Fault, text: str
) -> None:
    engine.script.handlers["call"] = raising(fault, text)
    await server.create()
    _task_id, (name, data) = await server.call()
    assert (name, data.replace(" ", "")) == ("error", text.replace(" ", ""))
    engine.script.handlers["call"] = ok()
    assert (await server.call())[-1][0] == "end"


@pytest.mark.parametrize("text", [" " * 10_000, "\u00a0\u2028\x85\x0b" * 3000, "\U0001f600" * 5000, "x" * 2_000_000])
async def test_large_results_arrive_whole(server: Server, engine: FakeEngine, text: str) -> None:
    engine.script.handlers["call"] = ok(text)
    await server.create()
    events = await server.call()
    assert all(len(data) <= 4096 for _name, data in events)
    assert result_of(events)["output"]["blocks"][0]["text"] == text


async def test_a_quick_call_is_answered_in_one_piece_and_reads_the_same(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await server.create()
    answers, lengths = [], []
    for at_once_s in (10.0, 0.0):
        monkeypatch.setattr(streams, "_AT_ONCE_S", at_once_s)
        async with server.open_call() as (events, response):
            lengths.append("Content-Length" in response.headers)
            answers.append([event async for event in events])
    assert lengths == [True, False]
    assert [[name for name, _data in events] for events in answers] == 2 * [["task_id", "end"]]
    assert answers[0][-1] == answers[1][-1]


async def test_stream_is_commented_while_it_is_silent(
    server: Server, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.01)
    engine.script.handlers["call"] = call = Gate(ok())
    await server.create()
    async with server.open_call() as (_events, response):
        seen = b""
        while seen.count(b": ping\r\n\r\n") < 3:
            seen += await response.content.readany()
        call.opened.set()
        seen += await response.content.read()
    assert b"event: end" in seen
    assert response.headers["Cache-Control"] == "no-cache"


async def test_calls_run_together(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = call = Gate(ok())
    container = await server.create()
    begun = [await server.begin_call() for _ in range(5)]
    await container.runtime.wait_received("call", times=5)
    call.opened.set()
    assert [(await task)[-1][0] for _call_id, task in begun] == 5 * ["end"]
    assert len({call_id for call_id, _task in begun}) == 5


async def test_too_many_calls_at_once(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_calls=2)
    engine.script.handlers["call"] = call = Gate(ok())
    container = await server.create()
    begun = [await server.begin_call() for _ in range(2)]
    async with server.client.post("/call", json={"name": "b", "input": {}}, headers={"X-Session-ID": "s1"}) as response:
        assert (response.status, response.headers["Retry-After"]) == (429, "1")
        assert (await response.json())["reason"] == "capacity"
    call.opened.set()
    for _call_id, task in begun:
        await task
    assert (await server.call())[-1][0] == "end"
    assert container.runtime.received.count("call") == 3


# --- Time -------------------------------------------------------------------------------------------------------------


async def test_call_that_takes_too_long_and_ends_when_told_to(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(call_timeout_s=0.2)
    engine.script.handlers["call"] = Gate()
    container = await server.create()
    assert (await server.call())[1:] == [("error", "call_timeout: the call took longer than 0.2 s")]
    assert len(container.runtime.cancelled) == 1
    engine.script.handlers["call"] = ok()
    assert (await server.call())[-1][0] == "end"


@pytest.mark.parametrize("answers_late", [False, True])
async def test_call_that_takes_too_long_and_does_not_end(serve: Serve, engine: FakeEngine, answers_late: bool) -> None:
    server = await serve(call_timeout_s=0.2, cancel_grace_s=0.1)
    engine.script.ends_cancelled = False
    engine.script.handlers["call"] = NO_ANSWER
    await server.create()
    assert (await server.call())[1:] == [("error", "call_timeout: the call took longer than 0.2 s")]
    await until(lambda: engine.of(Role.SESSION) == [])
    reason = "call_timeout: the call took longer than 0.2 s and did not end when told to"
    assert await server.get("/prompt", "s1") == (410, {"detail": reason, "reason": "call_timeout"})


async def test_call_that_ends_well_in_the_grace_period_is_late_all_the_same(serve: Serve, engine: FakeEngine) -> None:
    async def late(runtime: FakeRuntime, params: dict[str, Any]) -> Any:
        await runtime.wait_cancelled()
        return ok("late")

    server = await serve(call_timeout_s=0.2)
    engine.script.ends_cancelled = False
    engine.script.handlers["call"] = late
    await server.create()
    assert (await server.call())[1:] == [("error", "call_timeout: the call took longer than 0.2 s")]
    assert (await server.post("/ping", "s1"))[0] == 200


async def test_prompt_that_takes_too_long(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(call_timeout_s=0.2, cancel_grace_s=0.1)
    engine.script.handlers["prompt"] = NO_ANSWER
    await server.create()
    status, body = await server.get("/prompt", "s1")
    assert (status, body["detail"]) == (422, "call_timeout: prompt took longer than 0.2 s")
    await until(lambda: engine.of(Role.SESSION) == [])


async def test_prompt_and_task_tools_that_raise(server: Server, engine: FakeEngine) -> None:
    refuse = raising(Fault.ENVIRONMENT_RAISED, "ValueError: no")
    engine.script.handlers.update(prompt=refuse, task_tools=refuse)
    await server.create()
    expected = (422, {"detail": "ValueError: no", "reason": "environment_failed"})
    assert await server.get("/prompt", "s1") == expected
    assert await server.get("/task_tools", "s1") == expected
    assert (await server.call())[-1][0] == "end"


# --- Ended by others --------------------------------------------------------------------------------------------------


async def test_delete_ends_calls_with_an_error(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = Gate()
    container = await server.create()
    begun = [await server.begin_call() for _ in range(2)]
    await container.runtime.wait_received("call", times=2)
    await server.delete()
    for _call_id, task in begun:
        assert await task == [("error", "deleted: the session was deleted")]
    assert container.runtime.received[-1] == "teardown"
    assert len(container.runtime.cancelled) == 2


async def test_answers_after_the_end_change_nothing(server: Server, engine: FakeEngine) -> None:
    engine.script.ends_cancelled = False
    gate = Gate(ok())
    engine.script.handlers["call"] = gate

    async def teardown(runtime: FakeRuntime, params: dict[str, Any]) -> None:
        gate.opened.set()
        await asyncio.sleep(0)

    engine.script.handlers["teardown"] = teardown
    await server.create()
    _call_id, task = await server.begin_call()
    await server.delete()
    assert await task == [("error", "deleted: the session was deleted")]
