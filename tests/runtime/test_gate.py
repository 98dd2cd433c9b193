"""Which calls overlap: told by letting each call in and looking who is inside."""

from __future__ import annotations

import asyncio

import pytest

from sandbox_runtime.gate import Gate
from sandbox_runtime.tools import ToolOptions

PLAIN, CONCURRENT, EXCLUSIVE = ToolOptions(), ToolOptions(concurrent=True), ToolOptions(exclusive=True)


class Calls:
    """Calls through one gate, each of which stays inside until told to leave."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.inside: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, options: ToolOptions = PLAIN) -> None:
        """Start call ``name``, of the tool that its first letter names."""
        self._leave[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._call(name, options))
        await settle()

    async def _call(self, name: str, options: ToolOptions) -> None:
        async with self.gate.entered(name[0], options):
            self.inside.append(name)
            await self._leave[name].wait()
            self.inside.remove(name)

    async def leave(self, name: str) -> None:
        self._leave[name].set()
        await self._tasks[name]
        await settle()

    async def cancel(self, name: str) -> None:
        self._tasks[name].cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._tasks[name]
        await settle()


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.fixture
def calls() -> Calls:
    return Calls()


async def test_one_tool_runs_one_call_at_a_time_in_order(calls: Calls) -> None:
    for name in ("a1", "a2", "a3"):
        await calls.start(name)
    assert calls.inside == ["a1"]
    await calls.leave("a1")
    assert calls.inside == ["a2"]
    await calls.leave("a2")
    assert calls.inside == ["a3"]
    await calls.leave("a3")


async def test_different_tools_overlap(calls: Calls) -> None:
    await calls.start("a1")
    await calls.start("b1")
    assert calls.inside == ["a1", "b1"]
    await calls.leave("a1")
    await calls.leave("b1")


async def test_a_concurrent_tool_overlaps_with_itself(calls: Calls) -> None:
    await calls.start("a1", CONCURRENT)
    await calls.start("a2", CONCURRENT)
    assert calls.inside == ["a1", "a2"]
    await calls.leave("a2")
    await calls.leave("a1")


async def test_an_exclusive_call_waits_for_all_and_holds_back_new_ones(calls: Calls) -> None:
    await calls.start("a1")
    await calls.start("c1", CONCURRENT)
    await calls.start("x1", EXCLUSIVE)
    await calls.start("c2", CONCURRENT)
    await calls.start("b1")
    assert calls.inside == ["a1", "c1"]
    await calls.leave("a1")
    assert calls.inside == ["c1"]
    await calls.leave("c1")
    assert calls.inside == ["x1"]
    await calls.leave("x1")
    assert sorted(calls.inside) == ["b1", "c2"]
    await calls.leave("b1")
    await calls.leave("c2")


async def test_exclusive_calls_exclude_each_other(calls: Calls) -> None:
    await calls.start("x1", EXCLUSIVE)
    await calls.start("y1", EXCLUSIVE)
    assert calls.inside == ["x1"]
    await calls.leave("x1")
    assert calls.inside == ["y1"]
    await calls.leave("y1")


async def test_calls_queued_for_their_tool_do_not_hold_off_an_exclusive_one(calls: Calls) -> None:
    await calls.start("a1")
    await calls.start("a2")
    await calls.start("x1", EXCLUSIVE)
    await calls.leave("a1")
    assert calls.inside == ["x1"]
    await calls.leave("x1")
    assert calls.inside == ["a2"]
    await calls.leave("a2")


async def test_a_cancelled_exclusive_waiter_lets_the_others_in(calls: Calls) -> None:
    await calls.start("a1")
    await calls.start("x1", EXCLUSIVE)
    await calls.start("b1")
    assert calls.inside == ["a1"]
    await calls.cancel("x1")
    assert calls.inside == ["a1", "b1"]
    await calls.leave("a1")
    await calls.leave("b1")


@pytest.mark.parametrize("options", [PLAIN, CONCURRENT, EXCLUSIVE])
async def test_a_call_cancelled_inside_leaves_nothing_behind(calls: Calls, options: ToolOptions) -> None:
    await calls.start("a1", options)
    calls.inside.clear()
    await calls.cancel("a1")
    await calls.start("x1", EXCLUSIVE)
    assert calls.inside == ["x1"]
    await calls.leave("x1")


async def test_a_cancelled_waiter_leaves_nothing_behind(calls: Calls) -> None:
    await calls.start("x1", EXCLUSIVE)
    await calls.start("a1")
    await calls.cancel("a1")
    await calls.leave("x1")
    await calls.start("a2")
    assert calls.inside == ["a2"]
    await calls.leave("a2")
