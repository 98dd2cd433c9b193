"""From ``/create`` to the prompt, with a container that waited and without, and the floor of both, in turn."""

from __future__ import annotations

import asyncio

from bench.context import Bench, undisturbed
from bench.episodes import Session
from bench.floor import Floor
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, ms
from bench.ours import OurHost, has_warm_pool, our_host
from bench.table import COLD, WARM, Row, RowSpec

_WARM = 2
_REFILL_TIMEOUT_S = 30.0
_HELLO_S = 0.2
"""A container that runs is not yet one that is ready: its runtime is starting."""


async def cold(bench: Bench) -> list[Row]:
    """Measure creations for which a container has to be started."""
    return [await _measure(bench, COLD, warm=0)]


async def warm(bench: Bench) -> list[Row]:
    """Measure creations for which one waits."""
    if not has_warm_pool():
        return [Row(WARM, "", None, requests=0, error="this version of ors-host has no warm pool")]
    return [await _measure(bench, WARM, warm=_WARM)]


async def _measure(bench: Bench, spec: RowSpec, *, warm: int) -> Row:
    ours: list[float] = []
    start: list[float] = []
    remove: list[float] = []
    async with our_host([NATIVE_IMAGE], max_sessions=4, warm=warm) as host:
        await settled(host, warm)
        floor = Floor(bench.engine, host.pattern())
        for turn in range(-1, bench.plan.creations):  # the first is to warm up
            bench.say(f"creation {max(turn, 0) + 1} of {bench.plan.creations}")
            with undisturbed():
                took_s = await _create(host)
                # What the host does after an answer (it removes, it makes ready anew) is not to be in the floor's way.
                await settled(host, warm)
                cycle = floor.cycle()
            if turn >= 0:
                ours.append(took_s)
                start.append(cycle.start_s)
                remove.append(cycle.remove_s)
    mine, floor_start, floor_remove = Summary.of(ours), Summary.of(start), Summary.of(remove)
    ratio = mine.p50 / floor_start.p50
    return Row(
        spec,
        measured=f"{ratio:.2f} × ({ms(mine.p50)} to {ms(floor_start.p50)}; p99 {ms(mine.p99)} to {ms(floor_start.p99)})",
        value=ratio,
        requests=mine.n,
        note="environment written for ors-host" + (f"; --warm {warm}" if warm else ""),
        details={
            "ours_s": mine.as_json(),
            "floor_start_s": floor_start.as_json(),
            "floor_remove_s": floor_remove.as_json(),
        },
    )


async def _create(host: OurHost) -> float:
    async with Session.unstarted(host.server) as session:
        return await session.timed_start()


async def settled(host: OurHost, warm: int) -> None:
    """Wait until the host has the containers that it has at rest: the catalog's, and those that wait."""
    async with asyncio.timeout(_REFILL_TIMEOUT_S):
        while len(host.containers()) != 1 + warm:  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.02)
        await asyncio.sleep(_HELLO_S if warm else 0)
