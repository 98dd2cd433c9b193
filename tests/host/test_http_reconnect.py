"""Reconnection by task_id: a call runs at most once, and its result is its own session's only."""

from __future__ import annotations

import asyncio

from ors.client._http import resumable_sse

from sandbox_runtime.messages import Fault
from tests.host.fakes import FakeEngine, Gate, ok, raising
from tests.host.served import Serve, Server, result_of

UNKNOWN = [("error", "unknown task_id")]


async def test_client_that_goes_away_finds_its_call_again(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = call = Gate(ok("only once"))
    container = await server.create()
    async with server.open_call() as (events, response):
        _name, call_id = await anext(events)
        await container.runtime.wait_received("call")
        response.close()
    same_id, again = await server.begin_call(task_id=call_id)
    call.opened.set()
    assert same_id == call_id
    assert result_of(await again)["output"]["blocks"][0]["text"] == "only once"
    assert container.runtime.received.count("call") == 1


async def test_result_of_a_call_nobody_waited_for(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = call = Gate(ok("kept"))
    container = await server.create()
    async with server.open_call() as (events, response):
        _name, call_id = await anext(events)
        response.close()
    call.opened.set()
    for _ in range(3):
        assert result_of(await server.call(task_id=call_id))["output"]["blocks"][0]["text"] == "kept"
    assert container.runtime.received.count("call") == 1


async def test_real_client_survives_a_cut_stream(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = call = Gate(ok("once"))
    container = await server.create()

    def cut() -> None:
        assert server.client.connector is not None
        for connection in tuple(server.client.connector._acquired):
            assert connection.transport is not None
            connection.transport.abort()

    def on_event(name: str, _data: str) -> None:
        seen.append(name)
        if seen == ["task_id"]:
            asyncio.get_running_loop().call_soon(cut)
        else:
            call.opened.set()

    seen: list[str] = []
    body = {"name": "bash", "input": {}}
    result = await resumable_sse(
        server.client, "/bashenv/call", json=body, sid="s1", backoff_base=0.01, max_retries=3, on_event=on_event
    )
    assert result["output"]["blocks"][0]["text"] == "once"
    assert seen == ["task_id", "task_id", "end"]
    assert container.runtime.received.count("call") == 1


async def test_errors_are_kept_too(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = raising(Fault.ENVIRONMENT_RAISED, "ValueError: no")
    container = await server.create()
    (_name, call_id), first = await server.call()
    assert await server.call(task_id=call_id) == [("task_id", call_id), first]
    assert container.runtime.received.count("call") == 1


async def test_an_id_of_our_own_form_that_never_was(server: Server) -> None:
    container = await server.create()
    call_id = (await server.call())[0][1]
    other = call_id[:-1] + ("0" if call_id[-1] != "0" else "1")
    assert await server.call(task_id=other) == UNKNOWN
    assert container.runtime.received.count("call") == 1


async def test_another_sessions_call_is_out_of_reach(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = lambda runtime, params: ok(server.sid_of(runtime.container) or "")
    one, two = await server.create("one"), await server.create("two")
    call_id = (await server.call("one"))[0][1]
    assert await server.call("two", task_id=call_id) == UNKNOWN
    assert two.runtime.received.count("call") == 0
    await server.call("one", task_id="trace-1")
    events = await server.call("two", task_id="trace-1")
    assert result_of(events)["output"]["blocks"][0]["text"] == "two"
    assert one.runtime.received.count("call") == 2


async def test_a_clients_own_id_starts_one_call(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["call"] = call = Gate(ok())
    container = await server.create()
    begun = [await server.begin_call(task_id="trace-1") for _ in range(3)]
    call.opened.set()
    assert {call_id for call_id, _task in begun} == {"trace-1"}
    assert len({str(await task) for _call_id, task in begun}) == 1
    assert container.runtime.received.count("call") == 1


async def test_results_are_kept_for_a_time(serve: Serve) -> None:
    server = await serve(result_linger_s=0.05)
    container = await server.create()
    call_id = (await server.call(task_id="trace-1"))[0][1]
    seen = await server.call(task_id=call_id)
    while seen != UNKNOWN:
        assert seen[-1][0] == "end"
        seen = await server.call(task_id=call_id)
    assert container.runtime.received.count("call") == 1


async def test_results_are_kept_up_to_a_size(serve: Serve, engine: FakeEngine) -> None:
    server = await serve(max_kept_results=10_000)
    engine.script.handlers["call"] = ok("x" * 4000)
    await server.create()
    ids = [(await server.call())[0][1] for _ in range(3)]
    assert await server.call(task_id=ids[0]) == UNKNOWN
    assert (await server.call(task_id=ids[1]))[-1][0] == "end"
    assert (await server.call(task_id=ids[2]))[-1][0] == "end"
    engine.script.handlers["call"] = ok("x" * 20_000)
    events = await server.call()
    assert len(result_of(events)["output"]["blocks"][0]["text"]) == 20_000
    assert await server.call(task_id=events[0][1]) == UNKNOWN


async def test_results_end_with_their_session(server: Server) -> None:
    await server.create()
    call_id = (await server.call())[0][1]
    await server.delete()
    await server.create()
    assert await server.call(task_id=call_id) == UNKNOWN
