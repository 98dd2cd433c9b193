"""Whole episodes on environments of many shapes, served without an edit, through both public clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable
from typing import Any

import pytest

from .clients import CLIENTS, environments
from .episodes import EPISODES, Episode, play, play_shuffled

AT_ONCE = 3
Played = dict[tuple[str, str], Exception | None]


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest, urls: dict[str, str]) -> Played:
    """How each selected episode went; they are played together, because most of their time is a container's start."""
    selected = set()
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.function is test_episode:
            parameters: dict[str, Any] = item.callspec.params
            selected.add((parameters["client"], parameters["episode"].environment))
    results: Played = {}

    async def one(client: str, name: str, slots: asyncio.Semaphore, episode: Awaitable[None]) -> None:
        async with slots:
            try:
                await episode
                results[client, name] = None
            except Exception as exc:
                results[client, name] = exc

    async def all_of_them() -> None:
        slots = asyncio.Semaphore(AT_ONCE)
        for client, server in itertools.product(CLIENTS, ("ors-sdk", "games")):
            async with environments(client, urls[server]) as api, asyncio.TaskGroup() as tasks:
                for episode in EPISODES:
                    if (client, episode.environment) in selected and episode.server == server:
                        tasks.create_task(
                            one(client, episode.environment, slots, play(client, api.get(episode.environment), episode))
                        )

    asyncio.run(all_of_them())
    return results


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: episode.environment)
def test_episode(played: Played, client: str, episode: Episode) -> None:
    if (failure := played[client, episode.environment]) is not None:
        raise failure


@pytest.mark.parametrize("client", CLIENTS)
async def test_tasks_shuffled_by_hash_are_graded_in_another_process(client: str, urls: dict[str, str]) -> None:
    async with environments(client, urls["ors-sdk"]) as api:
        await play_shuffled(api.get("shuffled"))


@pytest.mark.parametrize("client", CLIENTS)
async def test_too_many_tasks_to_list(client: str, urls: dict[str, str]) -> None:
    async with environments(client, urls["ors-sdk"]) as api:
        environment = api.get("endless")
        assert await environment.num_tasks("train") == 1_000_000
        tasks = await environment.get_task_range("train", 999_998, None)
        assert [task.task_spec["index"] for task in tasks] == [999_998, 999_999]
        with pytest.raises(Exception, match=r"not supported.*index-based"):
            await environment.list_tasks("train")


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_constructor_without_its_secret_is_said_at_once(client: str, urls: dict[str, str]) -> None:
    async with environments(client, urls["ors-sdk"]) as api:
        environment = api.get("vault")
        session = environment.session(await environment.get_task("train", 0))
        with pytest.raises(Exception, match="OPENAI_API_KEY must be given in secrets"):
            await session.__aenter__()
        await session.__aexit__(None, None, None)


async def test_a_conversation_that_a_plain_message_ends(urls: dict[str, str]) -> None:
    async with environments("openreward", urls["tutor"]) as api:
        environment = api.get("tutor")
        assert await environment.is_assistant_message_final()
        task = await environment.get_task("train", 1)
        async with environment.session(task) as session:
            messages: list[Any] = await session.get_messages()
            assert [message.role for message in messages] == ["system", "user", "assistant", "user"]
            assert [block.type for block in messages[2].blocks] == ["reasoning", "tool_call"]
            assert "explain" not in {tool.name for tool in await session.list_tools()}
            assert await session.supports_score_group()
            scores = await session.score_group([[message] for message in messages[:2]])
            assert [score.reward for score in scores] == [pytest.approx(16 / 19), 1.0]
            output = await session.call_terminal_tool("Rain falls from a cloud.")
            assert (output.reward, output.finished) == (1.0, True)


async def test_the_older_client_on_a_conversation(urls: dict[str, str]) -> None:
    async with environments("ors-sdk", urls["tutor"]) as api:
        environment = api.get("tutor")
        async with environment.session(await environment.get_task("train", 0)) as session:
            text = "\n".join(block.text for block in await session.get_prompt())
            assert text.startswith("[system]\nYou are a tutor.\n[user]\n")
            assert {tool.name for tool in await session.list_tools()} == {"look_up", "give_up"}
            output = await session.call_tool("explain", {"message": "the moon"})
            assert (output.reward, output.finished) == (1.0, True)


async def test_a_toolset_that_the_session_brings(urls: dict[str, str]) -> None:
    async with environments("openreward", urls["tutor"]) as api:
        environment = api.get("desk")
        async with environment.session(await environment.get_task("train", 0), toolset="claude-code") as session:
            assert {"bash", "read", "submit"} <= {tool.name for tool in await session.list_tools()}
            assert "ran: " in (await session.call_tool("bash", {"command": "ls"})).blocks[0].text
            assert (await session.call_tool("submit")).finished
