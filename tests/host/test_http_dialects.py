"""What only some environments have: conversations, groups that are scored, a terminal tool; and data folders."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import anyio
import pytest
from openreward.api.environments.client import Message as ClientMessage
from ors.client._http import _parse_sse_events

from host.data import DATA_DIR
from host.engine import Role
from host.errors import StartupError
from sandbox_runtime.messages import Fault
from tests.host.fakes import TAG, FakeEngine, Gate, Script, raising
from tests.host.served import Events, Serve, Server, result_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the SDK imports

TOOL = {"name": "bash", "description": "run", "input_schema": None}
TERMINAL = {"name": "submit", "arg": "answer", "description": "Grade."}
MORE = {"terminal_tool": TERMINAL, "supports_score_group": True, "message_block_types": ["text", "image", "reasoning"]}
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "blocks": [{"type": "text", "text": "q", "detail": None}], "detail": None},
    {
        "role": "assistant",
        "blocks": [{"type": "reasoning", "text": "hm", "signature": None, "detail": None}],
        "detail": {"a": 1},
    },
]
CANDIDATES = [{"messages": MESSAGES, "metadata": {"k": 1}}, {"messages": []}]
SCORES = {"scores": [{"reward": 0.5, "metadata": None}, {"reward": -1.0, "metadata": {"why": "worse"}}]}


@pytest.fixture
async def rich(serve: Serve, engine: FakeEngine) -> Server:
    """A host with an environment that has everything."""
    engine.script.handlers["list_tools"] = {"tools": [TOOL], **MORE}
    engine.script.handlers["messages"] = MESSAGES
    engine.script.handlers["score_group"] = SCORES
    return await serve()


async def score(server: Server, sid: str = "s1", **body: Any) -> Events:
    body = {"candidates": CANDIDATES, **body}
    async with server.client.post("/bashenv/score_group", json=body, headers={"X-Session-ID": sid}) as response:
        assert response.status == 200, await response.text()
        return [event async for event in _parse_sse_events(response)]


class TestTools:
    async def test_what_stands_beside_the_tools(self, rich: Server) -> None:
        assert await rich.get("/bashenv/tools") == (200, {"tools": [TOOL], **MORE})

    async def test_nulls_too(self, serve: Serve, engine: FakeEngine) -> None:
        answer = {"tools": [TOOL], **dict.fromkeys(MORE, None)}
        engine.script.handlers["list_tools"] = engine.script.handlers["task_tools"] = answer
        server = await serve()
        assert await server.get("/bashenv/tools") == (200, answer)
        await server.create()
        assert await server.get("/bashenv/task_tools", "s1") == (200, answer)

    async def test_a_terminal_tool_is_tool_enough(self, serve: Serve, engine: FakeEngine) -> None:
        engine.script.handlers["list_tools"] = answer = {"tools": [], "terminal_tool": TERMINAL}
        assert await (await serve()).get("/tools") == (200, answer)

    async def test_no_tool_at_all(self, serve: Serve, engine: FakeEngine) -> None:
        engine.script.handlers["list_tools"] = {"tools": [], "terminal_tool": None}
        with pytest.raises(StartupError, match="has no tool"):
            await serve()


class TestMessages:
    @pytest.mark.parametrize("path", ["/bashenv/messages", "/messages"])
    async def test_messages(self, rich: Server, path: str) -> None:
        container = await rich.create()
        assert await rich.get(path, "s1") == (200, MESSAGES)
        assert container.runtime.received.count("messages") == 1

    async def test_they_wait_for_set_up(self, serve: Serve, engine: FakeEngine) -> None:
        engine.script.handlers["list_tools"] = {"tools": [TOOL], **MORE}
        engine.script.handlers["setup"] = setup = Gate()
        server = await serve(prompt_wait_s=0.01)
        await server.create()
        status, body = await server.get("/bashenv/messages", "s1")
        assert (status, body["reason"]) == (503, "starting")
        setup.opened.set()

    async def test_an_environment_without_is_not_even_asked(self, server: Server) -> None:
        container = await server.create()
        status, body = await server.get("/bashenv/messages", "s1")
        assert (status, body["reason"]) == (404, "not_found")
        assert "messages" not in container.runtime.received

    async def test_without_a_session(self, rich: Server) -> None:
        assert (await rich.get("/bashenv/messages"))[0] == 400
        assert (await rich.get("/bashenv/messages", "none"))[0] == 404

    async def test_an_answer_that_is_none_ends_the_session(self, rich: Server, engine: FakeEngine) -> None:
        engine.script.handlers["messages"] = [{"role": "user", "blocks": [{"type": "video"}]}]
        await rich.create()
        status, body = await rich.get("/bashenv/messages", "s1")
        assert (status, body["reason"]) == (410, "protocol_violation")


class TestScoreGroup:
    async def test_scores(self, rich: Server) -> None:
        container = await rich.create()
        events = await score(rich)
        assert [name for name, _data in events] == ["task_id", "end"]
        assert result_of(events) == SCORES
        given = container.runtime.params["score_group"]
        assert given["call_id"] == events[0][1]
        assert given["candidates"] == [CANDIDATES[0], {"messages": [], "metadata": None}]

    async def test_asked_again_it_runs_once(self, rich: Server) -> None:
        container = await rich.create()
        call_id = (await score(rich))[0][1]
        assert result_of(await score(rich, task_id=call_id)) == SCORES
        assert result_of(await score(rich, task_id="mine")) == SCORES
        assert container.runtime.received.count("score_group") == 2
        assert await score(rich, task_id="call_0") == [("error", "unknown task_id")]

    async def test_a_judge_that_raises(self, rich: Server, engine: FakeEngine) -> None:
        engine.script.handlers["score_group"] = raising(Fault.ENVIRONMENT_RAISED, "the judge is asleep")
        await rich.create()
        assert (await score(rich))[1:] == [("error", "the judge is asleep")]

    async def test_a_set_up_that_failed(self, rich: Server, engine: FakeEngine) -> None:
        engine.script.handlers["setup"] = raising(Fault.ENVIRONMENT_RAISED, "no")
        await rich.create()
        events = await score(rich)
        assert events[-1] == ("error", "setup_failed: no")

    async def test_an_environment_without_says_so_before_a_stream_is_open(self, server: Server) -> None:
        container = await server.create()
        status, body = await server.post("/bashenv/score_group", "s1", json={"candidates": CANDIDATES})
        assert (status, body["detail"]) == (404, "'bashenv' has no score_group")
        assert "score_group" not in container.runtime.received

    @pytest.mark.parametrize(
        ("body", "field"),
        [
            ({}, "candidates"),
            ({"candidates": {}}, "candidates"),
            ({"candidates": [{"messages": [{"role": "tool", "blocks": []}]}]}, "candidates.0.messages.0.role"),
            ({"candidates": [], "more": 1}, "more"),
            ({"candidates": [], "task_id": "a b"}, "task_id"),
        ],
    )
    async def test_bad_bodies(self, rich: Server, body: dict[str, Any], field: str) -> None:
        await rich.create()
        status, answer = await rich.post("/bashenv/score_group", "s1", json=body)
        assert status == 400
        assert field in answer["detail"]

    async def test_a_block_where_it_can_not_be(self, rich: Server) -> None:
        await rich.create()
        turn = {"role": "user", "blocks": MESSAGES[1]["blocks"]}
        status, answer = await rich.post("/score_group", "s1", json={"candidates": [{"messages": [turn]}]})
        assert status == 400
        assert "a reasoning block can't be in a turn of the user" in answer["detail"]

    async def test_an_answer_that_is_none_ends_the_session(self, rich: Server, engine: FakeEngine) -> None:
        engine.script.handlers["score_group"] = {"scores": [{"reward": None}]}
        await rich.create()
        assert (await score(rich))[-1][1].startswith("protocol_violation")


async def test_the_public_clients_types_take_our_messages(rich: Server) -> None:
    await rich.create()
    _status, messages = await rich.get("/bashenv/messages", "s1")
    assert [ClientMessage(**message).role for message in messages] == ["user", "assistant"]


async def test_tools_that_are_known_after_set_up_only(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["setup"] = setup = Gate()
    engine.script.handlers["task_tools"] = raising(Fault.ENVIRONMENT_RAISED, "AttributeError: level")
    container = await server.create()
    asked = asyncio.create_task(server.get("/bashenv/task_tools", "s1"))
    await container.runtime.wait_received("task_tools")
    engine.script.handlers["task_tools"] = {"tools": [TOOL]}
    setup.opened.set()
    assert await asked == (200, {"tools": [TOOL]})
    assert container.runtime.received.count("task_tools") == 2


async def test_tools_that_are_never_known(server: Server, engine: FakeEngine) -> None:
    engine.script.handlers["task_tools"] = raising(Fault.ENVIRONMENT_RAISED, "AttributeError: level")
    container = await server.create()
    assert (await server.get("/bashenv/prompt", "s1"))[0] == 200
    status, body = await server.get("/bashenv/task_tools", "s1")
    assert (status, body["reason"]) == (422, "environment_failed")
    assert container.runtime.received.count("task_tools") == 1


class TestToolset:
    async def test_its_name_reaches_the_runtime(self, server: Server) -> None:
        container = await server.create(task_spec={}, toolset_name="cli")
        assert container.runtime.params["create"]["toolset_name"] == "cli"

    async def test_one_that_can_not_be_had(self, server: Server, engine: FakeEngine) -> None:
        engine.script.handlers["create"] = raising(Fault.INVALID_TOOLSET, "no toolset 'x' here")
        status, body = await server.post("/create", "s1", json={"task_spec": {}, "toolset_name": "x"})
        assert (status, body["detail"]) == (400, "no toolset 'x' here")
        engine.script.handlers["create"] = None
        await server.create()


class TestData:
    async def test_all_containers_of_an_image_have_its_folder(
        self, serve: Serve, engine: FakeEngine, tmp_path: Path
    ) -> None:
        await anyio.Path(tmp_path).chmod(0o755)
        engine.add_image("other:1", Script(environments=["Other"]))
        server = await serve((TAG, "other:1"), data=(f"other:1={tmp_path}",))
        await server.create("s1", env_name="other", task_spec={})
        await server.create("s2", env_name="bashenv", task_spec={})
        mounts = {
            (container.spec.image.tag, container.role): container.spec.mounts
            for container in engine.containers.values()
        }
        for role in Role:
            assert mounts["other:1", role] == {DATA_DIR: tmp_path}
            assert mounts[TAG, role] == {}
