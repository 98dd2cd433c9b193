"""A question that an environment never answers: told once, and its container replaced, so that none pile up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host.build import build_environment
from host.engine import Role
from tests.docker.harness import running_host
from tests.host.conftest import state_dir
from tests.host.fakes import NO_ANSWER, FakeEngine, Gate
from tests.host.served import serving

__all__ = ["state_dir"]

HUNG = "ors-host-test-hung:latest"
SOURCE = '''
import time
from sandbox_runtime import Environment, TextBlock, ToolOutput, tool

class Hung(Environment):
    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        while split == "test":
            time.sleep(1)
        return [{"n": 1}]

    def get_prompt(self):
        return [TextBlock(text="?")]

    @tool
    def answer(self) -> ToolOutput:
        """Answer."""
        return ToolOutput(blocks=[TextBlock(text="!")], finished=True)
'''


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.open() as engine:
        yield engine


@pytest.mark.parametrize("confirms", [True, False])
async def test_only_what_does_not_end_costs_the_container(fake: FakeEngine, state_dir: Path, confirms: bool) -> None:
    fake.script.handlers["list_tasks"] = NO_ANSWER if not confirms else Gate()
    fake.script.ends_cancelled = confirms
    async with serving(state_dir, fake, discovery_timeout_s=0.2, cancel_grace_s=0.2) as server:
        (first,) = fake.of(Role.CATALOG)
        status, body = await server.post("/tasks", json={"split": "train"})
        assert (status, body["reason"]) == (422, "environment_failed")
        assert "list_tasks took longer than 0.2 s" in body["detail"]
        assert fake.of(Role.CATALOG) == ([first] if confirms else [])
        assert await server.post("/num_tasks", json={"split": "train"}) == (200, {"num_tasks": 3})
        assert len(fake.of(Role.CATALOG)) == 1


async def test_others_who_asked_the_same_container_are_told_to_ask_again(fake: FakeEngine, state_dir: Path) -> None:
    fake.script.ends_cancelled = False
    fake.script.handlers.update(list_tasks=NO_ANSWER, num_tasks=NO_ANSWER)
    async with serving(state_dir, fake, discovery_timeout_s=1, cancel_grace_s=0.01) as server:
        (first,) = fake.of(Role.CATALOG)
        hung = asyncio.create_task(server.post("/tasks", json={"split": "train"}))
        await first.runtime.wait_received("list_tasks")
        await asyncio.sleep(0.5)  # so that the other's time is not over at the same moment
        other = asyncio.create_task(server.client.post("/num_tasks", json={"split": "train"}))
        assert (await hung)[0] == 422
        async with await other as response:
            assert (response.status, response.headers["Retry-After"]) == (503, "2")
            assert "ask again" in (await response.json())["detail"]


async def test_hung_questions_do_not_pile_up(tmp_path: Path) -> None:
    (tmp_path / "env.py").write_text(SOURCE)
    await asyncio.to_thread(build_environment, tmp_path, HUNG)
    with running_host(HUNG, discovery_timeout=3, cancel_grace=0.5) as host:
        (first,) = host.containers(role="catalog")
        async with host.client() as client:

            async def ask(split: str) -> int:
                async with client.http.post("/tasks", json={"split": split}) as response:
                    await response.read()
                    return response.status

            statuses = await asyncio.gather(*(ask("test") for _ in range(5)))
            assert set(statuses) <= {422, 503} and 422 in statuses
            assert await ask("train") == 200
            (second,) = host.containers(role="catalog")
            assert second["Id"] != first["Id"]
            session = await client.create()
            assert (await session.call("answer")).text == "!"
            await session.delete()
