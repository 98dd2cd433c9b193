"""Peers: the same episode through OpenEnv and SWE-ReX, and through ors-host."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Any

from bench.context import Bench
from bench.episodes import Server, Session
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, ms
from bench.ours import our_host, remove_all
from bench.peers import PEER_LABEL, Peer
from bench.plan import Plan
from bench.table import OPENENV, SWEREX, Row, RowSpec


async def openenv(bench: Bench) -> list[Row]:
    """Measure OpenEnv: a step that the environment answers by itself."""
    return [await _measure(bench, OPENENV, Peer("openenv"), lambda session: session.small_call)]


async def swe_rex(bench: Bench) -> list[Row]:
    """Measure SWE-ReX: a command in its shell."""
    return [await _measure(bench, SWEREX, Peer("swe_rex"), lambda session: session.command_call)]


async def _measure(bench: Bench, spec: RowSpec, peer: Peer, request: Callable[[Session], bytes]) -> Row:
    if not bench.plan.prepares_peers and not peer.is_prepared(bench.engine):
        words = f"not prepared, which takes minutes: python -m bench --only {spec.name} does it, once"
        return Row(spec, "", None, requests=0, note=words)
    plan = bench.plan
    await asyncio.to_thread(peer.prepare, bench.engine, bench.say)
    bench.say("its episodes")
    try:
        theirs = await peer.drive(
            starts=plan.peer_starts, calls=plan.peer_calls, clients=plan.peer_clients, sessions=plan.peer_sessions
        )
    finally:
        remove_all(bench.engine, PEER_LABEL)
    bench.say("the same on ors-host")
    async with our_host([NATIVE_IMAGE], max_sessions=2 * plan.peer_clients) as host:
        ours = await _play(host.server, request, plan)
    starts, their_starts, calls, their_calls = (
        Summary.of(side[key]) for key in ("starts_s", "calls_s") for side in (ours, theirs)
    )
    failures = theirs["failures"]
    return Row(
        spec,
        measured=f"start → first result {ms(their_starts.p50)}, ors-host {ms(starts.p50)}; call p50 "
        f"{ms(their_calls.p50)}, ors-host {ms(calls.p50)}; {theirs['sessions_per_s']:.2f} sessions/s, "
        f"ors-host {ours['sessions_per_s']:.2f}/s",
        value=None,
        requests=2 * (starts.n + calls.n),
        note=f"its own client; ors-host by the benchmark's; sessions/s with {plan.peer_clients} clients"
        + (f"; {len(failures)} of {plan.peer_sessions} of the peer's failed: {failures[0]}" if failures else ""),
        details={
            "starts_s": {"peer": their_starts.as_json(), "ours": starts.as_json()},
            "calls_s": {"peer": their_calls.as_json(), "ours": calls.as_json()},
            "sessions_per_s": {"peer": theirs["sessions_per_s"], "ours": ours["sessions_per_s"]},
            "peer_failures": failures,
        },
    )


async def _play(server: Server, request: Callable[[Session], bytes], plan: Plan) -> dict[str, Any]:
    firsts: list[float] = []
    times: list[float] = []
    for _ in range(plan.peer_starts):
        begin = time.perf_counter()
        async with Session.open(server) as session:
            await session.call(request(session))
            firsts.append(time.perf_counter() - begin)
            times += await _calls(session, request(session), plan.peer_calls)

    missing = iter(range(plan.peer_sessions))

    async def some() -> None:
        for _ in missing:
            async with Session.open(server) as session:
                await session.call(request(session))

    begin = time.perf_counter()
    await asyncio.gather(*(some() for _ in range(plan.peer_clients)))
    return {
        "starts_s": firsts,
        "calls_s": times,
        "sessions_per_s": plan.peer_sessions / (time.perf_counter() - begin),
    }


async def _calls(session: Session, request: bytes, calls: int) -> Sequence[float]:
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        await session.call(request)
        times.append(time.perf_counter() - begin)
    return times
