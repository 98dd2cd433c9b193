"""Calling sync and async functions without stalling the loop or leaving anything behind."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from typing import Any

import pytest

from sandbox_runtime import calling
from sandbox_runtime.calling import call, run_in_thread


async def test_async_runs_on_the_loop() -> None:
    async def where() -> threading.Thread:
        return threading.current_thread()

    assert await call(where) is threading.current_thread()


async def test_sync_runs_in_a_thread() -> None:
    assert await call(threading.current_thread) is not threading.current_thread()


async def test_an_awaitable_that_a_sync_function_returns_is_awaited() -> None:
    async def inner(x: int) -> int:
        return x + 1

    assert await call(lambda x: inner(x), 1) == 2
    assert await call(functools.partial(inner, 1)) == 2


async def test_a_blocked_thread_leaves_the_loop_free() -> None:
    gate = threading.Event()
    waiting = asyncio.create_task(call(gate.wait, 10))
    assert await call(lambda: "another call") == "another call"
    assert not waiting.done()
    gate.set()
    assert await waiting is True


async def test_threads_see_the_callers_context() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("mine")
    assert await call(variable.get) == "mine"


@pytest.mark.parametrize("exc", [ValueError("v"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError("own")])
async def test_whatever_a_thread_raises_arrives(exc: BaseException) -> None:
    def fail() -> None:
        raise exc

    with pytest.raises(type(exc)) as caught:
        await call(fail)
    assert caught.value is exc


async def test_stop_iteration_cannot_pass_for_a_result() -> None:
    with pytest.raises(RuntimeError, match="StopIteration"):
        await call(next, iter(()))


async def test_cancelling_waits_for_the_thread_and_says_so_to_it() -> None:
    asked, may_end, ended = asyncio.Event(), threading.Event(), threading.Event()

    def work() -> None:
        may_end.wait(10)
        ended.set()

    task = asyncio.create_task(run_in_thread(work, on_cancel=asked.set))
    await asyncio.sleep(0)
    task.cancel()
    await asked.wait()
    assert not task.done()
    task.cancel()  # a second time changes nothing
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


async def test_without_room_for_a_thread_nothing_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(calling, "_resting", [])
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="no thread could be started"):
        await run_in_thread(ran.append, "late")
    assert ran == []


async def test_threads_are_kept_for_the_next_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calling, "_resting", [])
    gate = threading.Event()
    busy = asyncio.create_task(call(lambda: (gate.wait(10), threading.current_thread())[1]))
    await asyncio.sleep(0)  # a thread has it before there is another call
    first = await call(threading.current_thread)
    assert await call(threading.current_thread) is first
    gate.set()
    assert await busy is not first


def test_a_thread_outlives_the_loop_that_waited_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    rested = threading.Event()

    class Resting(list[Any]):
        def append(self, thread: Any) -> None:
            super().append(thread)
            rested.set()

    async def begin() -> None:
        calling._give(calling._Run(gate.wait, (10,)))

    monkeypatch.setattr(calling, "_resting", Resting())
    gate = threading.Event()
    asyncio.run(begin())
    gate.set()
    assert rested.wait(10)
    assert asyncio.run(call(lambda: "the same thread, still there")) == "the same thread, still there"
