"""The calls of a session whose runtime says which there are: what an earlier host left, or a hostile environment makes up."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import anyio
import pytest

from host.calls import KeptResults, Outcome
from host.ending import Ending
from host.episode import Episode
from host.errors import Failure, Reason
from host.metrics import Metrics
from host.session_calls import SessionCalls
from host.timeline import Timeline
from sandbox_runtime.messages import EpisodeState, Method


class Asked(list[str]):
    """An episode that answers everything, and what it was asked for."""

    async def call(self, method: Method, params: Mapping[str, Any]) -> Outcome:
        self.append(params["call_id"])
        return Outcome("end", "{}")


def calls_of(settled: anyio.Event, ending: Ending) -> SessionCalls:
    return SessionCalls(
        max_in_flight=64,
        linger_s=60,
        results=KeptResults(1_000_000),
        settled=settled,
        ending=ending,
        close=lambda _failure: None,
        on_end=lambda: None,
        timeline=Timeline("0", "s1", "BashEnv", "image"),
        metrics=Metrics(),
        clock=lambda: 0.0,
    )


async def adopted(**ids: list[str]) -> tuple[Asked, int]:
    """Adopt what a runtime says there is; return what it is asked for, and how many calls are in flight after that."""
    settled, asked = anyio.Event(), Asked()
    calls = calls_of(settled, Ending())
    settled.set()
    left = {"running_calls": [], "finished_calls": [], "forgotten_calls": [], **ids}
    async with asyncio.TaskGroup() as tasks:
        calls.open(tasks, cast(Episode, asked))
        calls.adopt(EpisodeState.model_validate({"environment": "BashEnv", **left}))
    in_flight = calls.in_flight
    calls.close()
    return asked, in_flight


async def test_calls_that_were_left_are_asked_for_once() -> None:
    assert await adopted(running_calls=["a", "b", "a"], finished_calls=["c", "a", "c"]) == (["c", "a", "b"], 0)


async def test_no_more_calls_are_taken_over_than_an_episode_has() -> None:
    asked, in_flight = await adopted(running_calls=[f"r{n}" for n in range(20_000)])
    assert (len(asked), in_flight) == (1000, 0)


@pytest.mark.parametrize("settled_before", [True, False])
async def test_a_call_that_finds_the_session_ending_is_not_run(settled_before: bool) -> None:
    settled, ending, asked = anyio.Event(), Ending(), Asked()
    calls = calls_of(settled, ending)
    if settled_before:
        settled.set()
    async with asyncio.TaskGroup() as tasks:
        calls.open(tasks, cast(Episode, asked))
        call = calls.call(Method.CALL, {"name": "bash", "input": {}}, None)
        if not settled_before:
            await asyncio.sleep(0)  # it waits for set-up
        ending.because(Failure(Reason.DELETED, "deleted"))
        settled.set()
    assert asked == [] and call.outcome == Outcome("error", "deleted: deleted")
