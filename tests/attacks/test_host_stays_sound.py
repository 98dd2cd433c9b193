"""The host under attack by several sessions at once: its memory, and how soon it answers the others."""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.attacks.attacker import ATTACKS, attack_once
from tests.attacks.board import ENVIRONMENT, attack
from tests.attacks.hosts import GROWTH_MB, memory_mb, readers
from tests.docker.harness import RunningHost, Session, until

ROUNDS = 5
CALLS = 150
"""In one window; the 99th percentile is the second-slowest of these."""

FACTOR = 2.0
FLOOR_MS = 5.0
"""A call is a matter of four processes, and on a machine of two busy processors each of them waits for its turn: that is what a
percentile below this says. From here on it is the host."""


async def p99_ms(session: Session) -> float:
    """Return the 99th percentile of a small call's time, over one window."""
    times = []
    for _ in range(CALLS):
        started = time.perf_counter()
        assert (await session.call("probe")).event == "end"
        times.append(time.perf_counter() - started)
    return sorted(times)[-2] * 1000


@asynccontextmanager
async def under_attack(host: RunningHost, attackers: int) -> AsyncIterator[None]:
    """So many attackers, each from one session after the other; the block begins when the first attack of each is over."""
    command = (sys.executable, "-m", "tests.attacks.attacker", host.url)
    pipe = asyncio.subprocess.PIPE
    processes = [await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe) for _ in range(attackers)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert await process.stdout.readline()
        yield
    finally:
        for process in processes:
            await process.communicate()


async def settled(host: RunningHost) -> None:
    """Wait until nothing of the attacks is left: no container, and no process that reads what is heavy."""
    await until(lambda: host.containers(role="session") == [], 30)
    await until(lambda: readers(host) == [], 30)


@attack("S01", ENVIRONMENT, "make the host grow by more than 20 MB")
async def test_memory_after_the_attacks(hostile_host: RunningHost) -> None:
    async with hostile_host.client() as client:
        before = memory_mb(hostile_host)
        for _ in range(2):
            await asyncio.gather(*(attack_once(client, tool_input) for tool_input in ATTACKS))
        await settled(hostile_host)
        with suppress(TimeoutError):  # it looks for memory to give back every ten seconds
            await until(lambda: memory_mb(hostile_host) - before <= GROWTH_MB, 25)
        after = memory_mb(hostile_host)
    print(f"host memory: {before} MB before, {after} MB after {2 * len(ATTACKS)} attacks")
    assert after - before <= GROWTH_MB


@attack("S02", ENVIRONMENT, "make other sessions' calls slower (99th percentile, twice that of quiet)")
@pytest.mark.timeout(180)
@pytest.mark.parametrize("attackers", [1, 2])
async def test_latency_of_a_neighbour(hostile_host: RunningHost, attackers: int) -> None:
    """Windows of quiet and of attack take turns, so that whatever else the machine does is in both."""
    async with hostile_host.client() as client:
        neighbour = await client.create()
        await p99_ms(neighbour)  # warm
        quiet, attacked = [], []
        for _ in range(ROUNDS):
            quiet.append(await p99_ms(neighbour))
            async with under_attack(hostile_host, attackers):
                attacked.append(await p99_ms(neighbour))
        await neighbour.delete()
    print(
        f"99th percentiles of a small call in ms, {attackers} attackers: quiet {rounded(quiet)}, attacked {rounded(attacked)}"
    )
    assert statistics.median(attacked) <= FACTOR * max(statistics.median(quiet), FLOOR_MS)


def rounded(times: list[float]) -> list[float]:
    return [round(time, 1) for time in times]
