"""Running the list: each flow on the reference server and on ours, side by side, and the answers paired."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import aiohttp

from . import flows_calls, flows_discovery, flows_session  # noqa: F401 - importing them fills the list
from .differences import TABLE, Difference
from .flows import FLOWS, Flow
from .replies import Exchange, Reply, Request
from .talk import Talk

AT_ONCE = 3
"""Flows at the same time; each may have two containers, on two cores."""

_TIMEOUT_S = 150


@dataclass
class Outcome:
    """What one flow on one SDK's server and ours came to."""

    exchanges: int = 0
    unlisted: list[str] = field(default_factory=list)
    by_difference: dict[str, int] = field(default_factory=dict)


Case = tuple[str, Flow]


def cases(dialect: str) -> list[Case]:
    """Return the flows that a dialect has."""
    return [(dialect, flow) for flow in FLOWS if dialect in flow.dialects]


async def run(
    selected: Sequence[Case],
    reference: dict[str, str],
    ours: dict[str, str],
    table: Sequence[Difference] = TABLE,
) -> dict[tuple[str, str], Outcome]:
    """Run flows and compare.

    Args:
        reference: address of an SDK's own server by the name of the environments' folder.
        ours: address of our server with an image of the same folder.
        table: the differences that are meant.
    """
    slots = asyncio.Semaphore(AT_ONCE)
    outcomes: dict[tuple[str, str], Outcome] = {}

    async def one(dialect: str, flow: Flow) -> None:
        async with AsyncExitStack() as stack:
            if not flow.patient:
                await stack.enter_async_context(slots)
            server = flow.server or dialect
            recorded = await asyncio.gather(
                *(_record(flow, dialect, urls[server]) for urls in (reference, ours)), return_exceptions=True
            )
        theirs, mine = recorded
        if isinstance(theirs, BaseException) or isinstance(mine, BaseException):
            outcomes[dialect, flow.name] = Outcome(unlisted=[f"the flow failed: theirs {theirs!r}, ours {mine!r}"])
        else:
            outcomes[dialect, flow.name] = _compare(dialect, theirs, mine, table)

    async with asyncio.TaskGroup() as tasks:
        for dialect, flow in sorted(selected, key=lambda case: not case[1].patient):
            tasks.create_task(one(dialect, flow))
    return outcomes


async def _record(flow: Flow, dialect: str, url: str) -> list[tuple[Request, Reply]]:
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(_TIMEOUT_S)) as http:
        talk = Talk(http, flow.name, dialect)
        await flow.run(talk)
        return talk.recorded


def _compare(
    dialect: str,
    theirs: list[tuple[Request, Reply]],
    ours: list[tuple[Request, Reply]],
    table: Sequence[Difference],
) -> Outcome:
    outcome = Outcome()
    if len(theirs) != len(ours):
        outcome.unlisted.append(f"{len(theirs)} answers from the SDK's server, {len(ours)} from ours")
        return outcome
    for (request, reference), (_, mine) in zip(theirs, ours, strict=True):
        exchange = Exchange(dialect, request, reference, mine)
        outcome.exchanges += 1
        deltas = exchange.deltas()
        for difference in table if deltas else ():
            if dialect not in difference.theirs:
                continue
            covered = {delta.place for delta in deltas if difference.covers(exchange, delta)}
            if covered:
                outcome.by_difference[difference.name] = outcome.by_difference.get(difference.name, 0) + 1
                deltas = [delta for delta in deltas if delta.place not in covered]
        outcome.unlisted += [f"{request}\n      {delta}" for delta in deltas]
    return outcome
