"""How cost grows with sessions: memory on the way up, idle CPU at the top, the times of calls on the way down."""

from __future__ import annotations

import asyncio
from typing import Any

from bench.context import Bench, undisturbed
from bench.crowd import CALL_EVERY_S, COMMANDS, LARGE, PING_EVERY_S, Calls, Crowd
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, mb, ms
from bench.ours import our_host
from bench.table import HOST_BYTES_PER_SESSION, HOST_MEMORY, IDLE, MEMORY, SCALE, Row
from bench.usage import Memory, Meter

_REST_S = 2.0
"""Until what creations leave to be done is done."""


async def scale(bench: Bench) -> list[Row]:
    """Measure all rows that need many sessions at once, on one host with default settings."""
    steps = bench.plan.sessions
    most = steps[-1]
    memories: list[Memory] = []
    created_s: list[float] = []
    calls: dict[int, Calls] = {}
    async with our_host([NATIVE_IMAGE], max_sessions=most) as host, Crowd.gathering(host.server) as crowd:
        await asyncio.sleep(_REST_S)
        before = Meter(host).memory(0)
        for size in steps:
            bench.say(f"creating sessions, {size} of {most}")
            created_s.append(await crowd.grow(size))
            await asyncio.sleep(_REST_S)
            memories.append(Meter(host).memory(size))
        bench.say(f"{most} idle sessions, {bench.plan.idle_s:g} s")
        meter = Meter(host)
        cpu_before = meter.cpu_s()
        pings = await crowd.keep_alive(bench.plan.idle_s)
        cpu = {name: (used - cpu_before[name]) / bench.plan.idle_s for name, used in meter.cpu_s().items()}
        for size in reversed(steps):
            bench.say(f"mixed calls of {size} sessions, {bench.plan.mixed_s:g} s")
            await crowd.shrink(size)
            await asyncio.sleep(_REST_S)
            with undisturbed():
                calls[size] = await crowd.mixed_calls(bench.plan.mixed_s)
    return [
        _memory(before, memories[-1]),
        _host_memory(memories[-1]),
        _idle(cpu, pings, most, bench.plan.idle_s),
        _scale(before, memories, created_s, calls),
    ]


def _memory(before: Memory, after: Memory) -> Row:
    host = (after.host - before.host) / after.sessions
    engine = (after.engine - before.engine) / after.sessions
    whole = after.container + after.shim + host + engine
    return Row(
        MEMORY,
        measured=f"{mb(after.runtime)}; the whole {mb(whole)}: container {mb(after.container)}, shim {mb(after.shim)}, "
        f"host {mb(host)}, engine {mb(engine)}",
        value=after.runtime,
        requests=after.sessions,
        note=f"mean of {after.sessions}; environment written for ors-host; container as its control group counts",
        details={
            **after.as_json(),
            "whole_bytes": whole,
            "host_bytes_per_session": host,
            "engine_bytes_per_session": engine,
        },
    )


def _host_memory(after: Memory) -> Row:
    return Row(
        HOST_MEMORY,
        measured=f"{mb(after.host)} at {after.sessions}",
        value=after.host - HOST_BYTES_PER_SESSION * after.sessions,
        requests=after.sessions,
        note=f"{after.sessions} idle sessions; resident set of the process",
        details=after.as_json(),
    )


def _idle(cpu: dict[str, float], pings: int, sessions: int, duration_s: float) -> Row:
    counted = cpu["host"] + cpu["sessions"]
    return Row(
        IDLE,
        measured=f"{counted:.1%} of a core (host {cpu['host']:.1%}, sessions {cpu['sessions']:.1%}); besides, shims "
        f"{cpu['shims']:.1%}, engine {cpu['engine']:.1%}",
        value=counted,
        requests=pings,
        note=f"{sessions} sessions, {duration_s:g} s, a ping each {PING_EVERY_S:g} s",
        details={"cores": cpu, "sessions": sessions, "seconds": duration_s},
    )


def _scale(before: Memory, memories: list[Memory], created_s: list[float], calls: dict[int, Calls]) -> Row:
    steps: list[dict[str, Any]] = []
    previous = 0
    for memory, took_s in zip(memories, created_s, strict=True):
        made = calls[memory.sessions]
        steps.append(
            {
                "sessions": memory.sessions,
                "creations_per_s": (memory.sessions - previous) / took_s,
                "host_bytes": memory.host,
                "whole_bytes_per_session": memory.container
                + memory.shim
                + (memory.host - before.host + memory.engine - before.engine) / memory.sessions,
                "small_s": Summary.of(made.small).as_json() if made.small else None,
                "command_s": Summary.of(made.command).as_json() if made.command else None,
                "large_s": Summary.of(made.large).as_json() if made.large else None,
            }
        )
        previous = memory.sessions
    most = calls[memories[-1].sessions]
    small = Summary.of(most.small)
    return Row(
        SCALE,
        measured=f"p99 {ms(small.p99)}, p50 {ms(small.p50)}"
        + (f"; a command's p50 {ms(Summary.of(most.command).p50)}" if most.command else "")
        + (f"; 1 MB's p50 {ms(Summary.of(most.large).p50)}" if most.large else ""),
        value=small.p99,
        requests=sum(each.n + each.failed for each in calls.values()),
        failed=sum(each.failed for each in calls.values()),
        note=f"{memories[-1].sessions} sessions, a call each {CALL_EVERY_S:g} s or so in each: {COMMANDS:.0%} run a command "
        f"as the agent, {LARGE:.0%} have 1 MB",
        details={"steps": steps},
    )
