"""What goes wrong with the engine and the host in a soak, at random; and the invariants that are looked at all along."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

import aiohttp

from host import docker_client
from tests.lifecycle.faulty_engine import ANYTHING, CREATE, LIST, REMOVE, START, FaultyEngine
from tests.lifecycle.hosts import RestartableHost
from tests.lifecycle.report import Report

_HEALTH_S = 3.0
_SAMPLE_S = 0.5


async def engine_faults(
    host: RestartableHost, engine: FaultyEngine, report: Report, rng: random.Random, *, every_s: float
) -> None:
    """Have the engine fail in one way after the other, until cancelled. Not while a host starts: it would say so and end."""
    kinds = {"create": CREATE, "start": START, "remove": REMOVE, "list": LIST}
    while True:
        await asyncio.sleep(rng.uniform(0.5, 1.5) * every_s)
        await host.up.wait()
        name = rng.choice(list(kinds))
        times = rng.randint(1, 3)
        match rng.randrange(7):
            case 0:
                what, fault = "slow", engine.inject(kinds[name], delay_s=rng.uniform(1, 4), times=times)
            case 1:
                what, fault = "500", engine.inject(kinds[name], status=500, times=times)
            case 2:
                what, fault = "404", engine.inject(kinds[name], status=404, times=1)
            case 3 | 4:
                what, fault = "answer lost", engine.inject(kinds[name], lose=True, times=times)
            case 5:
                name = "remove"
                what, fault = "409", engine.inject(REMOVE, status=409, times=times)
            case _:
                name = "anything"
                what, fault = "hangs", engine.inject(ANYTHING, hang=True)
                await asyncio.sleep(rng.uniform(0.5, 3))
        await asyncio.sleep(1)
        engine.lift(fault)
        for _ in range(fault.hits):
            report.fault(f"engine: {name} {what}")


async def host_deaths(
    host: RestartableHost, engine: FaultyEngine, report: Report, rng: random.Random, *, times: int, within_s: float
) -> None:
    """Kill the host, so many times, and start another in its place."""
    for _ in range(times):
        await asyncio.sleep(rng.uniform(0.6, 1.2) * within_s / times)
        await host.kill()
        report.fault("host: kill -9")
        engine.heal()
        await asyncio.sleep(rng.random())
        await host.start()


async def watch(host: RestartableHost, http: aiohttp.ClientSession, report: Report, *, measured_after_s: float) -> None:
    """Look at the invariants and measure the host, until cancelled."""
    began, told_at = time.monotonic(), 0.0
    with contextlib.closing(docker_client.connect()) as engine:
        while True:
            await asyncio.sleep(_SAMPLE_S)
            labels = [f"ors-host.server={host.running.server_id}", "ors-host.role=session"]
            found = await asyncio.to_thread(engine.containers, all=True, filters={"label": labels})
            report.most_containers = max(report.most_containers, len(found))
            if not host.up.is_set():
                continue
            await _check_health(host, http, report)
            now = time.monotonic()
            if now - began >= measured_after_s:
                with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):  # just killed
                    report.usage.append(host.usage())
            if now - told_at >= 10:
                told_at = now
                bad = ", ".join(report.problems) or "all well"
                print(
                    f"{now - began:6.0f} s  {report.sessions} sessions, {report.calls} calls, "
                    f"{sum(report.faults.values())} faults, {len(found)} containers; {bad}",
                    flush=True,
                )


async def _check_health(host: RestartableHost, http: aiohttp.ClientSession, report: Report) -> None:
    starts = host.starts
    try:
        async with asyncio.timeout(_HEALTH_S), http.get("/health") as response:
            status = response.status
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as exc:
        if host.up.is_set() and host.starts == starts:
            report.bad("wrong", f"/health: {type(exc).__name__}")
        return
    if status != 200:
        report.bad("wrong", f"/health: {status}")
