"""The defaults of ``Environment``, and overriding each of them, sync and async."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import sandbox_runtime
from sandbox_runtime import (
    Blocks,
    Environment,
    JSONObject,
    ListToolsOutput,
    Split,
    TextBlock,
    ToolOutput,
    ToolSpec,
    tool,
)
from sandbox_runtime.calling import call


class Base(Environment):
    @classmethod
    def list_splits(cls) -> Sequence[Split | str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Any:
        return [{"n": n} for n in range(5)]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text="?")]


def numbers(tasks: Sequence[JSONObject]) -> list[int]:
    return [task["n"] for task in tasks]


async def test_defaults_count_and_index_the_list() -> None:
    assert await call(Base.num_tasks, "train") == 5
    assert await call(Base.get_task, "train", 2) == {"n": 2}
    assert await call(Base.get_task, "train", -1) == {"n": 4}


@pytest.mark.parametrize("index", [5, -6])
async def test_an_index_outside_is_an_index_error(index: int) -> None:
    with pytest.raises(IndexError):
        await call(Base.get_task, "train", index)


RANGES = [(None, None), (1, 3), (-2, None), (None, -1), (3, 100), (-100, 2), (4, 1), (0, 0), (5, 9), (-1, -3)]


class ByIndex(Base):
    @classmethod
    def list_tasks(cls, split: str) -> Any:
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        return 5

    @classmethod
    def get_task(cls, split: str, index: int) -> JSONObject:
        return {"n": index}


@pytest.mark.parametrize("env", [Base, ByIndex])
@pytest.mark.parametrize(("start", "stop"), RANGES)
async def test_a_range_is_a_slice(env: type[Environment], start: int | None, stop: int | None) -> None:
    assert numbers(await call(env.get_task_range, "train", start, stop)) == list(range(5))[start:stop]


async def test_the_list_is_built_once_per_class_and_split() -> None:
    calls: list[tuple[str, str]] = []

    class Counting(Base):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            calls.append((cls.__name__, split))
            return [{"n": 1}]

    class Child(Counting):
        pass

    await asyncio.gather(*(call(Counting.get_task, "train", 0) for _ in range(5)))
    await call(Counting.num_tasks, "train")
    await call(Counting.num_tasks, "test")
    await call(Child.num_tasks, "train")
    assert calls == [("Counting", "train"), ("Counting", "test"), ("Child", "train")]


async def test_a_list_that_failed_is_asked_for_again() -> None:
    answers: list[Any] = [RuntimeError("not yet"), [{"n": 1}]]

    class Flaky(Base):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            answer = answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer

    with pytest.raises(RuntimeError, match="not yet"):
        await call(Flaky.num_tasks, "train")
    assert await call(Flaky.num_tasks, "train") == 1


async def test_an_async_list_runs_on_the_loop_and_a_sync_one_does_not() -> None:
    threads: list[threading.Thread] = []

    class Async(Base):
        @classmethod
        async def list_tasks(cls, split: str) -> Any:
            threads.append(threading.current_thread())
            return []

    class Sync(Base):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            threads.append(threading.current_thread())
            return []

    await call(Async.num_tasks, "train")
    await call(Sync.num_tasks, "train")
    assert threads[0] is threading.current_thread()
    assert threads[1] is not threading.current_thread()


@pytest.mark.parametrize("tasks", ["text", {"n": 1}, iter([]), None])
async def test_what_is_no_list_of_tasks(tasks: Any) -> None:
    class Odd(Base):
        @classmethod
        def list_tasks(cls, split: str) -> Any:
            return tasks

    with pytest.raises(TypeError, match=r"Odd\.list_tasks returned .*; expected a list of tasks"):
        await call(Odd.num_tasks, "train")


def test_what_the_constructor_keeps() -> None:
    env = Base({"q": 1}, {"key": "value"})
    assert (env.task_spec, env.secrets) == ({"q": 1}, {"key": "value"})
    assert (Base().task_spec, Base().secrets) == ({}, {})
    assert Base().secrets is not Base().secrets


async def test_setup_and_teardown_do_nothing() -> None:
    assert await call(Base().setup) is None
    assert await call(Base().teardown) is None


def test_the_three_methods_to_write() -> None:
    assert Environment.__abstractmethods__ == {"list_splits", "list_tasks", "get_prompt"}


class WithTools(Base):
    @tool
    def b(self) -> ToolOutput:
        """Second."""
        raise AssertionError

    @tool
    def a(self) -> ToolOutput:
        """First."""
        raise AssertionError

    @tool(shared=False)
    def hidden(self) -> ToolOutput:
        """Of the task."""
        raise AssertionError


async def test_shared_tools_and_task_tools_are_listed_apart() -> None:
    assert await call(WithTools.list_tools) == ListToolsOutput(
        tools=[
            ToolSpec(name="a", description="First.", input_schema=None),
            ToolSpec(name="b", description="Second.", input_schema=None),
        ]
    )
    assert [spec.name for spec in (await call(WithTools().list_task_tools)).tools] == ["hidden"]


def test_everything_an_author_needs_is_exported() -> None:
    for name in sandbox_runtime.__all__:
        assert hasattr(sandbox_runtime, name)
