"""The public clients, unmodified: whole episodes on every example, and what their retries and parsers make of us."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import openreward
import ors.client
import pytest

from tests.conformance.clients import environments as open_client
from tests.docker.conftest import EXAMPLES
from tests.docker.harness import RunningHost, running_host

sys.path.insert(0, str(EXAMPLES))

from episodes import EPISODES, Episode, play

CLIENTS = ("ors-sdk", "openreward")


@pytest.fixture(scope="module")
def examples_host(example_images: list[str], probe_image: str) -> Iterator[RunningHost]:
    """One host with all examples and the probe."""
    with running_host(*example_images, probe_image) as host:
        yield host


@pytest.fixture(params=CLIENTS)
async def environments(
    request: pytest.FixtureRequest, examples_host: RunningHost, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Any]:
    """``environments.get(name)`` of a client; the two have the same methods from there on."""
    url = examples_host.url
    if request.param == "ors-sdk":
        client: Any = ors.client.AsyncORS(base_url=url)
    else:
        for variable in ("OPENREWARD_SESSION_URL", "OPENREWARD_API_URL"):
            monkeypatch.setenv(variable, url)
        client = openreward.AsyncOpenReward(api_key="unused")
    yield client.environments
    for session in client.environments._clients.values():
        await session.close()
    assert examples_host.containers(role="session") == []


async def probe_session(environments: Any) -> Any:
    """A session on the probe. By its task: given a split and an index, ors-sdk's client doesn't name the environment."""
    environment = environments.get("probe")
    return environment.session(await environment.get_task("train", 0))


@pytest.mark.parametrize("episode", EPISODES, ids=lambda episode: f"{episode.environment}: {episode.title}")
async def test_episode(environments: Any, episode: Episode) -> None:
    outcome = await play(environments.get(episode.environment), episode)
    assert outcome.reward == pytest.approx(episode.reward)


@pytest.mark.parametrize("name", ["bashenv", "codeenv", "gsm8kenv", "plotenv"])
async def test_discovery(environments: Any, name: str) -> None:
    environment = environments.get(name)
    splits = await environment.list_splits()
    assert "train" in splits
    tasks = await environment.list_tasks("train")
    assert await environment.num_tasks("train") == len(tasks) > 0
    assert (await environment.get_task("train", -1)).task_spec == tasks[-1].task_spec
    assert [task.task_spec for task in await environment.get_task_range("train", 1, None)] == [
        task.task_spec for task in tasks[1:]
    ]
    tools = await environment.list_tools()
    assert tools
    assert await environment.list_tools(format="openai")


async def test_a_task_object_and_its_secrets_arrive(environments: Any) -> None:
    environment = environments.get("probe")
    task = await environment.get_task("hard", 2)
    async with environment.session(task, secrets={"openai_api_key": "sk-1", "HF_TOKEN": "x y"}) as session:
        assert (await session.get_prompt())[0].text == "task 2"
        text = (await session.call_tool("secret")).blocks[0].text
        assert "openai_api_key=sk-1" in text and "HF_TOKEN=x y" in text
        tools = [tool.name for tool in await session.list_tools()]
        assert "finish" in tools and "count" in tools
        output = await session.call_tool("finish")
        assert output.finished and output.reward == 1.0
        with pytest.raises(Exception, match="finished"):
            await session.call_tool("count")


@pytest.mark.parametrize("text", [" " * 10_000, "x" + " " * 9_000 + "y", "\u00a0\u2028\t\n " * 3000, "👩‍👩‍👧é" * 2000])
async def test_white_space_and_emoji_survive_the_clients_parsers(environments: Any, text: str) -> None:
    async with await probe_session(environments) as session:
        for offset in range(4090, 4100, 3):
            output = await session.call_tool("echo", {"text": "." * offset + text})
            assert output.blocks[0].text == "." * offset + text


async def test_five_megabytes_arrive_whole(environments: Any) -> None:
    async with await probe_session(environments) as session:
        output = await session.call_tool("echo", {"text": "0123456789abcdef", "times": 5 * 2**16})
        assert output.blocks[0].text == "0123456789abcdef" * 5 * 2**16


@pytest.mark.timeout(300)
async def test_a_silent_call_of_forty_seconds_is_not_given_up(examples_host: RunningHost) -> None:
    """By neither of the clients, which wait at the same time."""

    async def wait(client: str) -> str:
        async with (
            open_client(client, examples_host.url) as environments,
            await probe_session(environments) as session,
        ):
            return str((await session.call_tool("sleep_async", {"seconds": 40})).blocks[0].text)

    assert await asyncio.gather(*map(wait, CLIENTS)) == ["1", "1"]


async def test_wrong_tool_and_wrong_input_are_words_not_retries(environments: Any) -> None:
    async with await probe_session(environments) as session:
        with pytest.raises(Exception, match="not a valid tool"):
            await session.call_tool("no_such_tool")
        with pytest.raises(Exception, match="Tool input validation error"):
            await session.call_tool("bash", {"no_such_field": 1})
        assert (await session.call_tool("count")).blocks[0].text == "1"


async def test_a_tool_that_raises_raises_in_the_client(environments: Any) -> None:
    async with await probe_session(environments) as session:
        with pytest.raises(Exception, match="the tool raised"):
            await session.call_tool("fail", {"what": "raise"})


async def test_ten_episodes_at_once(environments: Any) -> None:
    episode = next(episode for episode in EPISODES if episode.environment == "bashenv" and episode.reward == 1.0)
    outcomes = await asyncio.gather(*(play(environments.get("bashenv"), episode) for _ in range(10)))
    assert [outcome.reward for outcome in outcomes] == [1.0] * 10


async def test_a_connection_cut_before_the_answer_runs_the_tool_once(examples_host: RunningHost) -> None:
    """What a client does by itself after it has the id: post again with it."""
    async with examples_host.client() as client:
        session = await client.create(env_name="probe")
        async with session.calling(
            "bash", command="echo once >> /workspace/log; sleep 1; cat /workspace/log"
        ) as stream:
            call_id = stream.call_id
        replies = await asyncio.gather(*(session.call("bash", call_id=call_id, command="true") for _ in range(5)))
        assert {reply.text for reply in replies} == {"once\n"}
        await session.delete()


async def test_sync_client(examples_host: RunningHost) -> None:
    def episode() -> str:
        with ors.client.ORS(base_url=examples_host.url) as client:
            environment = client.environment("probe")
            with environment.session(environment.get_task("train", 1)) as session:
                (block,) = session.call_tool("count").blocks
                assert isinstance(block, ors.client.TextBlock)
                return block.text

    assert await asyncio.to_thread(episode) == "1"


async def test_bare_paths_and_the_redirect(examples_host: RunningHost) -> None:
    async with aiohttp.ClientSession(examples_host.url) as http:
        async with http.get("/tools") as bare, http.get("/bashenv/tools") as named, http.get("/BashEnv/tools") as cased:
            assert await bare.json() == await named.json() == await cased.json()
        async with http.get("/nowhere/tools?x=1", allow_redirects=False) as response:
            assert response.status == 308
            assert response.headers["Location"] == "/bashenv/nowhere/tools?x=1"
        async with http.get("/nowhere/tools") as response:
            assert response.status == 404
            assert "detail" in await response.json()
        async with http.get("/splits", headers={"X-Deployment": "Acme/Probe"}) as response:
            assert [split["name"] for split in await response.json()] == ["train", "hard"]
