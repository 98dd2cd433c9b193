"""One host and a Ray cluster in turn: the same image, the same client, one node; then what nodes and sessions cost."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

from bench import processes
from bench.cluster import RayHost, processes_of, ray_host
from bench.context import Bench, undisturbed
from bench.crowd import Crowd
from bench.episodes import Session
from bench.images import NATIVE_IMAGE
from bench.numbers import Summary, mb, ms
from bench.ours import our_host
from bench.rows.calls import in_turn
from bench.rows.creation import settled
from bench.table import CALL, LARGE, PLACEMENTS, RAY_CALL, RAY_COST, RAY_LARGE, RAY_WARM, Row, RowSpec

_WARM = 2
_REST_S = 3.0


async def latency(bench: Bench) -> list[Row]:
    """Measure calls with small and with large results, and warm creations."""
    plan = bench.plan
    async with (
        our_host([NATIVE_IMAGE], max_sessions=8, warm=_WARM) as one,
        ray_host(NATIVE_IMAGE, nodes=1, sandboxes=8, warm=_WARM) as cluster,
    ):
        async with Session.open(cluster.server) as theirs, Session.open(one.server) as ours:
            for session in (theirs, ours):
                await session.check()
            pair = (theirs, cluster.server), (ours, one.server)
            before = processes.total_cpu_s(cluster.pids)
            small = await in_turn(bench, CALL, pair, plan.call_rounds, plan.calls_per_round)
            front_s = (processes.total_cpu_s(cluster.pids) - before) / len(small[0].all)
            large = await in_turn(bench, LARGE, pair, plan.large_rounds, plan.large_per_round)
        hosts = cluster.node(), one
        times: list[list[float]] = [[], []]
        for turn in range(-1, plan.creations):  # the first is to warm up
            bench.say(f"creation {max(turn, 0) + 1} of {plan.creations}")
            for host, own in zip(hosts, times, strict=True):
                for each in hosts:
                    await settled(each, _WARM)
                with undisturbed():
                    async with Session.unstarted(host.server) as session:
                        took_s = await session.timed_start()
                if turn >= 0:
                    own.append(took_s)
    return [
        replace(_compared(RAY_CALL, *(each.all for each in small)), note=f"CPU of the front: {ms(front_s)} a call"),
        _compared(RAY_LARGE, *(each.all for each in large)),
        _compared(RAY_WARM, *times),
    ]


def _compared(spec: RowSpec, cluster: list[float], one: list[float]) -> Row:
    theirs, ours = Summary.of(cluster), Summary.of(one)
    ratio = theirs.p50 / ours.p50
    return Row(
        spec,
        measured=f"{ratio:.2f} × ({ms(theirs.p50)} to {ms(ours.p50)}; p99 {ms(theirs.p99)} to {ms(ours.p99)})",
        value=ratio,
        requests=theirs.n + ours.n,
        note="one front, one node, all on the same cores",
        details={"cluster_s": theirs.as_json(), "one_machine_s": ours.as_json()},
    )


async def cost(bench: Bench) -> list[Row]:
    """Measure what nodes and sessions cost, and reservations, on clusters of growing size."""
    steps: list[dict[str, Any]] = []
    for nodes in bench.plan.cluster_nodes:
        bench.say(f"{nodes} nodes")
        async with ray_host(NATIVE_IMAGE, nodes=nodes, sandboxes=2 * bench.plan.placements) as host:
            steps.append(await _step(bench, host, nodes))
    return [_placements(steps), _cost(steps)]


async def _step(bench: Bench, host: RayHost, nodes: int) -> dict[str, Any]:
    sessions = bench.plan.cluster_sessions * nodes
    await asyncio.sleep(_REST_S)
    cpu, empty = _cpu_s(host), _memory(host)
    await asyncio.sleep(bench.plan.cluster_idle_s)
    idle = {name: (used - cpu[name]) / bench.plan.cluster_idle_s for name, used in _cpu_s(host).items()}
    async with Crowd.gathering(host.server) as crowd:
        await crowd.grow(sessions)
        await asyncio.sleep(_REST_S)
        cpu, full = _cpu_s(host), _memory(host)
        await crowd.keep_alive(bench.plan.cluster_idle_s)
        kept = {name: (used - cpu[name]) / bench.plan.cluster_idle_s for name, used in _cpu_s(host).items()}
    bench.say(f"{nodes} nodes: reservations")
    head = ",".join(map(str, processes_of(host.cluster.head).head))
    command = [sys.executable, "-m", "bench.placements", host.cluster.address, str(bench.plan.placements), head]
    asking = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await asking.communicate()
    return {
        "nodes": nodes,
        "sessions": sessions,
        "empty_bytes": empty,
        "full_bytes": full,
        "idle_cores": idle,
        "cores_with_sessions": kept,
        "placements": json.loads(printed),
    }


def _groups(host: RayHost) -> dict[str, list[int]]:
    nodes = [processes_of(node) for node in host.cluster.nodes]
    return {
        "front": host.pids,
        "head": [pid for node in nodes for pid in node.head],
        "ray": [pid for node in nodes for pid in node.ray],
        "agents": [pid for node in nodes for pid in node.agent],
        "hosts": [pid for node in nodes for pid in node.host],
    }


def _memory(host: RayHost) -> dict[str, int]:
    return {name: processes.total_pss_bytes(pids) for name, pids in _groups(host).items()}


def _cpu_s(host: RayHost) -> dict[str, float]:
    return {name: processes.total_cpu_s(pids) for name, pids in _groups(host).items()}


def _placements(steps: list[dict[str, Any]]) -> Row:
    last = steps[-1]["placements"]
    one = Summary.of(last["placed_s"])
    beside = Summary.of(last["placed_beside_them_s"])
    return Row(
        PLACEMENTS,
        measured=f"{last['placed_per_s']:,.0f}/s; one alone p50 {ms(one.p50)}, beside {last['groups']:,} others "
        f"{ms(beside.p50)}; {last['removed_per_s']:,.0f} removals/s",
        value=last["placed_per_s"],
        requests=sum(step["placements"]["groups"] for step in steps),
        note=f"{steps[-1]['nodes']} nodes; one process asks",
        details={"clusters": [{"nodes": step["nodes"], **_summed_up(step["placements"])} for step in steps]},
    )


def _summed_up(placements: dict[str, Any]) -> dict[str, Any]:
    return {
        name: Summary.of(value).as_json() if isinstance(value, list) else value for name, value in placements.items()
    }


def _cost(steps: list[dict[str, Any]]) -> Row:
    first, last = steps[0], steps[-1]

    def per_node(name: str) -> float:
        return float(last["empty_bytes"][name] / last["nodes"])

    def per_session(name: str) -> float:
        return float((last["full_bytes"][name] - last["empty_bytes"][name]) / last["sessions"])

    return Row(
        RAY_COST,
        measured=f"a node {mb(per_node('ray') + per_node('agents') + per_node('hosts'))} (Ray {mb(per_node('ray'))}, agent "
        f"{mb(per_node('agents'))}, host {mb(per_node('hosts'))}); head {mb(last['empty_bytes']['head'])}; front "
        f"{mb(last['empty_bytes']['front'])}; a session at the front {mb(per_session('front'))}, the head "
        f"{mb(per_session('head'))}, its node's host {mb(per_session('hosts'))}",
        value=None,
        requests=sum(step["sessions"] for step in steps),
        note=f"{first['nodes']} to {last['nodes']} nodes with {last['sessions'] // last['nodes']} sessions each; memory is "
        "proportional set size, containers left out",
        details={"clusters": [{name: value for name, value in step.items() if name != "placements"} for step in steps]},
    )
