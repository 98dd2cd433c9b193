"""``make soak MINUTES=10``: sessions and faults at random, the invariants all along, a report at the end.

    python -m tests.lifecycle.soak --minutes 10 --seed 1     sessions under faults
    python -m tests.lifecycle.soak --cycles 5000             create and delete in one host process, nothing else

Exit code 0 only if nothing leaked, nothing ran twice, nothing was lost, and memory and descriptors stayed where they were. The
host is killed in the first tenth of the time, and again at the very end, so that memory is measured on one process.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import aiohttp

from host import docker_client
from host.build import build_environment
from tests.docker.conftest import PROBE
from tests.docker.conftest import TESTS as DOCKER_TESTS
from tests.lifecycle.chaos import engine_faults, host_deaths, watch
from tests.lifecycle.faulty_engine import FaultyEngine, faulty_engine
from tests.lifecycle.hosts import RestartableHost, Usage
from tests.lifecycle.report import Report
from tests.lifecycle.trainer import Trainer

_MAX_SESSIONS = 10
_WARM = 2
_TRAINERS = 14
_IDLE_S = 25
_ALL_GONE_S = 90
_REST_S = 15
_ENGINE_CONNECTIONS = 17
"""Kept by the engine's client, as many as were needed at once so far."""

_SETTINGS = {
    "max_sessions": _MAX_SESSIONS,
    "warm": _WARM,
    "warm_max": _WARM,
    "queue_timeout": 10,
    "idle_timeout": _IDLE_S,
    "start_timeout": 20,
    "teardown_timeout": 2,
    "memory": "256MiB",
}


async def soak(
    image: str,
    *,
    seconds: float,
    seed: int,
    deaths: int = 4,
    last_deaths: int = 1,
    engine_every_s: float = 4,
    abandons: bool = True,
) -> Report:
    """Run it; return what was found. ``abandons``: some sessions are left to end by themselves, which is waited for."""
    report = Report(_MAX_SESSIONS)
    rng = random.Random(seed)
    async with _host(image, report) as (host, engine):
        async with _client(host) as http:
            await _some_cycles(http, report, 16, 8)  # threads and pools are made on first use
        before = await _at_rest(host)
        async with _client(host) as http:
            began = time.monotonic()
            watching = asyncio.create_task(watch(host, http, report, measured_after_s=0.1 * seconds))
            failing = asyncio.create_task(engine_faults(host, engine, report, rng, every_s=engine_every_s))
            trainers = [
                Trainer(http, host, report, random.Random(rng.random()), abandons=abandons) for _ in range(_TRAINERS)
            ]
            training = [asyncio.create_task(trainer.run(began + seconds)) for trainer in trainers]
            await host_deaths(host, engine, report, rng, times=deaths, within_s=0.09 * seconds)
            await asyncio.sleep(max(0.0, began + 0.99 * seconds - time.monotonic()))
            measured = list(report.usage)
            await host_deaths(host, engine, report, rng, times=last_deaths, within_s=0.01 * seconds)
            await asyncio.gather(*training)
            failing.cancel()
            engine.heal()
            await _abandoned_end(http, report, [sid for trainer in trainers for sid in trainer.abandoned])
            await _all_gone(host, report)
            watching.cancel()
            report.usage = measured
        report.compare(before, await _at_rest(host, than=before), spare_descriptors=_ENGINE_CONNECTIONS)
    return report


async def cycles(image: str, count: int, *, at_once: int = 8) -> Report:
    """Create and delete ``count`` sessions in one process; return what was found."""
    report = Report(_MAX_SESSIONS)
    async with _host(image, report) as (host, _engine):
        async with _client(host) as http:
            await _some_cycles(http, report, 2 * at_once, at_once)  # threads and pools are made on first use
        before = await _at_rest(host)
        async with _client(host) as http:
            done = 0
            while done < count:
                part = min(250, count - done)
                await _some_cycles(http, report, part, at_once)
                done += part
                now = host.usage()
                print(
                    f"{done} of {count}: {now.rss_bytes >> 20} MiB, {now.descriptors} descriptors, {now.threads} threads",
                    flush=True,
                )
                report.usage.append(now)
        await _all_gone(host, report)
        report.compare(before, await _at_rest(host, than=before))
    return report


async def _at_rest(host: RestartableHost, *, than: Usage | None = None) -> Usage:
    """Measure a host at rest: with ``than``, as soon as it holds no more. Its idle threads end after ten seconds."""
    seen = [host.usage()]
    for _ in range(_REST_S):
        if than is not None and seen[-1].descriptors <= than.descriptors and seen[-1].threads <= than.threads:
            break
        await asyncio.sleep(1)
        seen.append(host.usage())
    return seen[-1] if than is not None else max(seen[-5:], key=lambda usage: usage.threads)


async def _some_cycles(http: aiohttp.ClientSession, report: Report, count: int, at_once: int) -> None:
    left = iter(range(count))

    async def client() -> None:
        for n in left:
            headers = {"X-Session-ID": f"cycle-{report.sessions}-{n}"}
            async with http.post("/create", json={"task_spec": {}}, headers=headers) as response:
                if response.status != 200:
                    report.bad("wrong", f"create: {response.status} {await response.text()}")
            async with http.post("/delete", headers=headers) as response:
                if response.status != 200:
                    report.bad("wrong", f"delete: {response.status}")
            report.sessions += 1

    await asyncio.gather(*(client() for _ in range(at_once)))


@asynccontextmanager
async def _host(image: str, report: Report) -> AsyncIterator[tuple[RestartableHost, FaultyEngine]]:
    """A host behind an engine that can fail; at the end it is stopped, and nothing may be left of it."""
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    try:
        with faulty_engine(directory) as engine:
            host = RestartableHost(image, directory, engine.url, **_SETTINGS)
            await host.start()
            try:
                yield host, engine
                await host.stop()
            except BaseException:
                print(host.tail, file=sys.stderr)
                raise
            finally:
                if host.running.process.poll() is None:
                    host.running.kill()
                left = host.running.containers()
                for container in left:
                    report.bad("leaks", f"container {container['Names']} {container['State']} {container['Labels']}")
                for path in host.running.directories():
                    report.bad("leaks", f"directory {path.name}")
                await asyncio.to_thread(_remove, [container["Id"] for container in left])
    finally:
        shutil.rmtree(directory)


def _client(host: RestartableHost) -> aiohttp.ClientSession:
    """A client, whose connections end with it."""
    return aiohttp.ClientSession(host.running.url, timeout=aiohttp.ClientTimeout(120))


def _remove(ids: list[str]) -> None:
    with closing(docker_client.connect()) as engine:
        for each in ids:
            engine.remove_container(each, force=True)


async def _abandoned_end(http: aiohttp.ClientSession, report: Report, sids: list[str]) -> None:
    """Sessions that nobody asks for end by themselves."""
    await asyncio.sleep(_IDLE_S + 5 if sids else 0)
    for sid in sids:
        async with http.post("/ping", headers={"X-Session-ID": sid}) as response:
            if response.status == 200:
                report.bad("leaks", f"session {sid} lives on although nobody asks for it")


async def _all_gone(host: RestartableHost, report: Report) -> None:
    """Wait for the background's removals; what stays is a leak."""
    deadline = time.monotonic() + _ALL_GONE_S
    while time.monotonic() < deadline:
        containers = await asyncio.to_thread(host.running.session_containers)
        directories = host.running.directories()
        if not containers and len(directories) <= 1 + _WARM:
            return
        await asyncio.sleep(0.5)
    for container in containers:
        report.bad("leaks", f"container {container['Names']} {container['State']}")
    for path in directories:
        report.bad("leaks", f"directory {path.name}")


def main() -> int:
    """The command line; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lifecycle.soak", description="Sessions and faults at random."
    )
    parser.add_argument("--minutes", type=float, default=10, help="how long (default 10)")
    parser.add_argument("--seed", type=int, default=None, help="repeat what was chosen at random (default: a new one)")
    parser.add_argument("--cycles", type=int, default=None, help="only create and delete, so many times")
    options = parser.parse_args()
    build_environment(DOCKER_TESTS / "probe_env", PROBE)
    if options.cycles is not None:
        report = asyncio.run(cycles(PROBE, options.cycles))
        problems = report.problems
        print("\n".join(report.lines()))
    else:
        seed = options.seed if options.seed is not None else random.randrange(1 << 32)
        print(f"seed {seed}", flush=True)
        report = asyncio.run(soak(PROBE, seconds=60 * options.minutes, seed=seed))
        problems = report.problems + report.memory_problems()
        print("\n".join(report.lines()))
    print("passed" if not problems else f"FAILED: {'; '.join(problems)}")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
