"""Many creations: a steady stream of short sessions, and a hundred at once."""

from __future__ import annotations

import asyncio
import math
import time
from concurrent.futures import ThreadPoolExecutor

from bench.context import Bench
from bench.episodes import Session
from bench.floor import Floor
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, ms
from bench.ours import OurHost, our_host
from bench.table import BURST, CHURN, Row
from bench.wire import RequestFailed

_WARM_UP_SHARE = 0.1


async def churn_and_burst(bench: Bench) -> list[Row]:
    """Measure both on one host with the settings that it has by default, and the floor before and after the stream."""
    plan = bench.plan
    async with our_host([NATIVE_IMAGE], max_sessions=max(plan.burst, plan.churn_clients) + 8) as host:
        floor = Floor(bench.engine, host.pattern())
        half_s = plan.churn_s / 4
        bench.say(f"floor, {half_s:g} s")
        rates = [await asyncio.to_thread(_floor_rate, floor, plan.churn_clients, half_s)]
        bench.say(f"ors-host, {plan.churn_s:g} s")
        await _stream(host, plan.churn_clients, plan.churn_s * _WARM_UP_SHARE)
        rate, cycles, failed = await _stream(host, plan.churn_clients, plan.churn_s)
        bench.say(f"floor, {half_s:g} s")
        rates.append(await asyncio.to_thread(_floor_rate, floor, plan.churn_clients, half_s))
        bench.say(f"{plan.burst} creations at once")
        burst = await _burst(host, plan.burst, rate)
    floor_rate = sum(rates) / len(rates)
    summary = Summary.of(cycles)
    churn = Row(
        CHURN,
        measured=f"{rate / floor_rate:.2f} × ({rate:.1f}/s to {floor_rate:.1f}/s; a cycle p50 {ms(summary.p50)}, "
        f"p99 {ms(summary.p99)})",
        value=rate / floor_rate,
        requests=len(cycles) + failed,
        failed=failed,
        note=f"{plan.churn_clients} clients, {plan.churn_s:g} s, default settings, the floor before and after",
        details={"ours_per_s": rate, "floor_per_s": rates, "cycle_s": summary.as_json()},
    )
    return [churn, burst]


async def _stream(host: OurHost, clients: int, duration_s: float) -> tuple[float, list[float], int]:
    """Return cycles a second, each cycle's time, and how many failed; raise if all did."""
    cycles: list[float] = []
    failures: list[RequestFailed] = []
    begin = time.perf_counter()

    async def one() -> None:
        while (cycle_begin := time.perf_counter()) - begin < duration_s:
            try:
                async with Session.open(host.server) as session:
                    await session.call(session.small_call)
            except RequestFailed as exc:
                failures.append(exc)
            else:
                cycles.append(time.perf_counter() - cycle_begin)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(clients):
            tasks.create_task(one())
    if not cycles:
        raise failures[0]
    return len(cycles) / (time.perf_counter() - begin), cycles, len(failures)


def _floor_rate(floor: Floor, clients: int, duration_s: float) -> float:
    """Return how many containers a second are created, started, heard of and removed by so many threads."""
    begin = time.perf_counter()

    def one() -> int:
        done = 0
        while time.perf_counter() - begin < duration_s:
            floor.cycle()
            done += 1
        return done

    with ThreadPoolExecutor(clients) as threads:
        done = sum(future.result() for future in [threads.submit(one) for _ in range(clients)])
    return done / (time.perf_counter() - begin)


async def _burst(host: OurHost, size: int, churn_rate: float) -> Row:
    times: list[float] = []
    answered = asyncio.Barrier(size)  # none is deleted before the last has its answer
    begin = time.perf_counter()

    async def one() -> None:
        async with Session.unstarted(host.server) as session:
            try:
                await session.start()
                times.append(time.perf_counter() - begin)
            except RequestFailed:
                await answered.wait()
                raise
            await answered.wait()

    await asyncio.gather(*(one() for _ in range(size)), return_exceptions=True)
    if not times:
        return Row(BURST, "", None, requests=size, failed=size, error="none of them was served")
    expected_s = size / churn_rate
    ratio = max(times) / expected_s
    return Row(
        BURST,
        measured=f"{len(times)} of {size} served; the last after {max(times):.1f} s, {ratio:.2f} × {expected_s:.1f} s",
        value=ratio if len(times) == size else math.inf,
        requests=size,
        failed=size - len(times),
        note=f"{size} clients at once, default settings",
        details={"served_s": Summary.of(times).as_json(), "expected_s": expected_s},
    )
