"""Tool calls, on ors-host and on ors-sdk's own server in turn: the same class, the same client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.context import Bench, undisturbed
from bench.episodes import Server, Session
from bench.images import SDK_IMAGE
from bench.numbers import Summary, ms
from bench.ours import our_host
from bench.servers import sdk_server
from bench.table import CALL, LARGE, THROUGHPUT, Row, RowSpec

_WARM_UP_CALLS = 20
_NOTE = "one environment class, written for ors-sdk, on both; their default logging"


@dataclass
class Side:
    """One of the two servers, and what was measured on it, a list for each round."""

    server: Server
    rounds: list[list[float]] = field(default_factory=list)
    """The time of each call, in seconds."""
    rates: list[float] = field(default_factory=list)
    """Calls a second, if that is what was measured."""
    client_cpu_s: float = 0.0

    @property
    def all(self) -> list[float]:
        """The times of all rounds."""
        return [value for values in self.rounds for value in values]

    @property
    def client_s_per_call(self) -> float:
        """CPU time that this process used for one call."""
        return self.client_cpu_s / len(self.all)


async def latency(bench: Bench) -> list[Row]:
    """Measure single calls: one session on each server."""
    plan = bench.plan
    async with (
        our_host([SDK_IMAGE], max_sessions=4) as host,
        sdk_server() as reference,
        Session.open(host.server) as ours,
        Session.open(reference) as theirs,
    ):
        for session in (ours, theirs):
            await session.check()
        pair = (ours, host.server), (theirs, reference)
        small = await in_turn(bench, CALL, pair, plan.call_rounds, plan.calls_per_round)
        large = await in_turn(bench, LARGE, pair, plan.large_rounds, plan.large_per_round)
    return [compared(CALL, *small, note=_NOTE), compared(LARGE, *large, note=_NOTE)]


async def in_turn(
    bench: Bench, spec: RowSpec, pair: Sequence[tuple[Session, Server]], rounds: int, calls: int
) -> list[Side]:
    """Let two sessions call in turn, ``calls`` times each round, and return the times of both."""
    sides = [Side(server) for _, server in pair]
    for turn in range(rounds):
        bench.say(f"round {turn + 1} of {rounds}")
        for (session, _), side in zip(pair, sides, strict=True):
            request = session.large_call if spec is LARGE else session.small_call
            for _ in range(2 if spec is LARGE else _WARM_UP_CALLS):
                await session.call(request)
            side.rounds.append([])
            with undisturbed():
                cpu = time.process_time()
                for _ in range(calls):
                    begin = time.perf_counter()
                    response = await session.connection.ask(request)
                    side.rounds[-1].append(time.perf_counter() - begin)
                    assert response.status == 200
                side.client_cpu_s += time.process_time() - cpu
            await session.call(request)
    return sides


def compared(spec: RowSpec, ours: Side, theirs: Side, *, note: str) -> Row:
    """Return a row that says how many times as long a call takes on our side."""
    mine, reference = Summary.of(ours.all), Summary.of(theirs.all)
    ratio = mine.p50 / reference.p50
    by_round = [Summary.of(a).p50 / Summary.of(b).p50 for a, b in zip(ours.rounds, theirs.rounds, strict=True)]
    return Row(
        spec,
        measured=f"{ratio:.2f} × ({ms(mine.p50)} to {ms(reference.p50)}; p99 {ms(mine.p99)} to {ms(reference.p99)})",
        value=ratio,
        requests=mine.n + reference.n,
        note=note,
        details={
            "ours_s": mine.as_json(),
            "ors_sdk_s": reference.as_json(),
            "ratio_by_round": Summary.of(by_round).as_json(),
            "client_cpu_s_per_call": {side.server.name: side.client_s_per_call for side in (ours, theirs)},
        },
    )


async def throughput(bench: Bench) -> list[Row]:
    """Measure how many calls all sessions together are served, each asking again as soon as it has its answer."""
    plan = bench.plan
    async with AsyncExitStack() as stack:
        host = await stack.enter_async_context(our_host([SDK_IMAGE], max_sessions=plan.throughput_sessions))
        sides = [Side(host.server), Side(await stack.enter_async_context(sdk_server()))]
        sessions: list[list[Session]] = []
        for side in sides:
            bench.say(f"{plan.throughput_sessions} sessions on {side.server.name}")
            opened = await asyncio.gather(
                *(stack.enter_async_context(Session.open(side.server)) for _ in range(plan.throughput_sessions))
            )
            sessions.append(opened)
        for turn in range(-1, plan.throughput_rounds):  # the first is to warm up
            bench.say(f"round {max(turn, 0) + 1} of {plan.throughput_rounds}")
            for side, own in zip(sides, sessions, strict=True):
                cpu = time.process_time()
                with undisturbed():
                    rate, latencies = await _flood(own, plan.throughput_s if turn >= 0 else plan.throughput_s / 2)
                if turn >= 0:
                    side.client_cpu_s += time.process_time() - cpu
                    side.rates.append(rate)
                    side.rounds.append(latencies)
    return [_rates(sides, plan.throughput_sessions)]


def _rates(sides: Sequence[Side], sessions: int) -> Row:
    ours, theirs = (Summary.of(side.rates) for side in sides)
    latencies = [Summary.of(side.all) for side in sides]
    ratio = ours.p50 / theirs.p50
    return Row(
        THROUGHPUT,
        measured=f"{ratio:.2f} × ({ours.p50:,.0f}/s to {theirs.p50:,.0f}/s; p99 {ms(latencies[0].p99)} "
        f"to {ms(latencies[1].p99)})",
        value=ratio,
        requests=sum(each.n for each in latencies),
        note=f"{sessions} sessions; client on the same cores",
        details={
            "sessions": sessions,
            "ours_per_s": ours.as_json(),
            "ors_sdk_per_s": theirs.as_json(),
            "ours_s": latencies[0].as_json(),
            "ors_sdk_s": latencies[1].as_json(),
            "client_cpu_s_per_call": {side.server.name: side.client_s_per_call for side in sides},
        },
    )


async def _flood(sessions: Sequence[Session], duration_s: float) -> tuple[float, list[float]]:
    """Return calls a second, and each call's time."""
    latencies: list[float] = []
    begin = time.perf_counter()
    end = begin + duration_s

    async def one(session: Session) -> None:
        now = time.perf_counter()
        while now < end:
            await session.call(session.small_call)
            before, now = now, time.perf_counter()
            latencies.append(now - before)

    async with asyncio.TaskGroup() as tasks:
        for session in sessions:
            tasks.create_task(one(session))
    return len(latencies) / (time.perf_counter() - begin), latencies
