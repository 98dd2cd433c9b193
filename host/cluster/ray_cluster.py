"""The one module that imports ``ray``: reservations, nodes, agents. Everything is bounded in time, and no more comes out of it.

Ray's calls block, so they run in threads; one that Ray's head doesn't answer keeps its thread for up to a minute, but not its
caller. Placement groups are used as nothing but reservations: no process runs in them, and no object passes Ray's store.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Any, Self, TypeVar

import anyio
import anyio.to_thread

from host.cluster.agent import Agent
from host.cluster.agent_status import AgentStatus
from host.cluster.names import (
    NAMESPACE,
    RESOURCE,
    AgentAway,
    ClusterAway,
    ClusterNode,
    Placement,
    PlaceTaken,
    agent_name,
    session_group,
    session_of,
)
from host.errors import StartupError

T = TypeVar("T")

_ANSWER_S = 5.0
_CONNECT_S = 40.0
_STOP_S = 150.0
_TABLE_S = 60.0
"""Ray keeps a line of every reservation that ever was, and gives them all."""

_THREADS = 16

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_DISABLE_IMPORT_WARNING", "1")
os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")  # a signal to stop is no failure to print a stack for

try:
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError, RayError
    from ray.util.placement_group import (
        PlacementGroup,
        get_placement_group,
        placement_group,
        placement_group_table,
        remove_placement_group,
    )
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError as exc:
    raise StartupError(
        f"--engine ray needs Ray beside ors-host: pip install 'ors-host[ray]' ({exc.name or 'ray'} is missing)"
    ) from exc


class RayCluster:
    """A connection to a cluster."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._agents: dict[str, Any] = {}

    @classmethod
    @asynccontextmanager
    async def open(cls, address: str) -> AsyncIterator[Self]:
        """Be a driver of the cluster for the length of the block.

        Raises:
            StartupError: there is none at ``address``, or this machine is none of its nodes.
        """
        cluster = cls()
        try:
            await cluster._ask(lambda: _connect(address), _CONNECT_S)
        except (ConnectionError, ClusterAway, ValueError, OSError, RuntimeError, RayError) as exc:
            raise StartupError(
                f"no Ray cluster answers at {address!r} ({_first_line(exc)}); this machine must be one of its nodes: run "
                "ray start here first, or give --ray-address"
            ) from exc
        try:
            yield cluster
        finally:
            with anyio.move_on_after(_ANSWER_S, shield=True):
                await cluster._ask(ray.shutdown)

    # --- Nodes --------------------------------------------------------------------------------------------------------

    async def nodes(self) -> list[ClusterNode]:
        """Return the nodes that take sessions, dead ones too. Raises ClusterAway."""
        found = await self._ask(ray.nodes)
        return [
            ClusterNode(
                id=node["NodeID"],
                address=node["NodeManagerAddress"],
                port=int(node["NodeManagerPort"]),
                sandboxes=int(node["Resources"].get(RESOURCE, 0)),
                alive=bool(node["Alive"]),
            )
            for node in found
        ]

    async def start_agent(self, node: ClusterNode, settings: Mapping[str, Any]) -> None:
        """Start a node's agent, unless it has one. Raises ClusterAway, AgentAway."""

        def start() -> Any:
            options = {
                "name": agent_name(node.id),
                "namespace": NAMESPACE,
                "lifetime": "detached",
                "get_if_exists": True,
                "num_cpus": 0,
                "max_restarts": -1,
                "max_concurrency": 8,
                "scheduling_strategy": NodeAffinitySchedulingStrategy(node.id, soft=False),
            }
            actor = ray.remote(_AgentActor).options(**options)
            return actor.remote(node.id, node.address, node.sandboxes, dict(settings))

        self._agents[node.id] = await self._ask(start)

    async def agent_status(self, node: str) -> AgentStatus:
        """Return what a node's agent says. Raises ClusterAway, AgentAway."""
        agent = await self._agent(node)
        said = await self._answer(agent.status.remote(), node)
        # One of another version may say more, or less.
        return AgentStatus(**{field.name: said[field.name] for field in fields(AgentStatus) if field.name in said})

    async def stop_agent(self, node: str, *, remove: bool) -> None:
        """End a node's agent, and its host in order; with ``remove`` its sessions too. Raises ClusterAway, AgentAway."""
        agent = await self._agent(node)
        await self._answer(agent.stop.remote(remove), node, _STOP_S)
        await self.forget_agent(node)

    async def forget_agent(self, node: str) -> None:
        """Have Ray not start a node's agent again. Raises ClusterAway, AgentAway."""
        agent = await self._agent(node)
        await self._ask(lambda: ray.kill(agent, no_restart=True))
        self._agents.pop(node, None)

    async def _agent(self, node: str) -> Any:
        if (agent := self._agents.get(node)) is None:
            try:
                agent = await self._ask(lambda: ray.get_actor(agent_name(node), namespace=NAMESPACE))
            except ValueError:
                raise AgentAway(f"node {node} has no agent") from None
            self._agents[node] = agent
        return agent

    async def _answer(self, answer: Any, node: str, timeout_s: float = _ANSWER_S) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                return await asyncio.wrap_future(answer.future())
        except TimeoutError:
            raise AgentAway(f"the agent of node {node} doesn't answer") from None
        except RayActorError as exc:
            self._agents.pop(node, None)
            raise AgentAway(_first_line(exc)) from exc
        except RayError as exc:
            raise AgentAway(_first_line(exc)) from exc

    # --- Reservations -------------------------------------------------------------------------------------------------

    async def reserve(self, name: str, bundle: Mapping[str, float], exclude: Collection[str]) -> str:
        """Ask for a place on any node but these; return the reservation's id. It need not be placed yet.

        Raises:
            PlaceTaken: there is a reservation of that name.
            ClusterAway: Ray's head doesn't answer.
        """
        selector = [{"ray.io/node-id": f"!in({','.join(sorted(exclude))})"}] if exclude else None

        def reserve() -> str:
            group = placement_group(
                [dict(bundle)], strategy="SPREAD", name=name, lifetime="detached", bundle_label_selector=selector
            )
            return str(group.id.hex())

        try:
            return await self._ask(reserve)
        except ClusterAway as exc:
            # The words are all that tells it from other errors; asking first would cost a round trip.
            if "already exists" in str(exc):
                raise PlaceTaken(name) from None
            raise

    async def wait_placed(self, group: str) -> str:
        """Wait until a reservation is placed, and return the node's id. Raises ClusterAway, LookupError if it is gone."""
        handle = _handle(group)
        try:
            await asyncio.wrap_future(handle.ready().future())
        except GetTimeoutError as exc:
            raise ClusterAway(_first_line(exc)) from exc
        except RayError as exc:
            raise LookupError(_first_line(exc)) from exc
        placement = _placement(await self._ask(lambda: placement_group_table(handle)))
        if placement is None or placement.node is None:
            raise LookupError(f"the reservation {group} is gone")
        return placement.node

    async def find(self, name: str) -> Placement | None:
        """Return a reservation by its name, None if there is none. Raises ClusterAway."""

        def find() -> Placement | None:
            try:
                group = get_placement_group(name)
            except ValueError:
                return None
            return _placement(placement_group_table(group))

        return await self._ask(find)

    async def release(self, name: str) -> None:
        """Give a reservation back; fine if there is none. Raises ClusterAway."""

        def release() -> None:
            try:
                remove_placement_group(get_placement_group(name))
            except ValueError:
                return

        await self._ask(release)

    async def release_session(self, sid: str) -> None:
        """Give a session's reservation back. Raises ClusterAway."""
        await self.release(session_group(sid))

    async def reservations(self) -> dict[str, Placement]:
        """Return all sessions' reservations, by session. Raises ClusterAway."""
        table = await self._ask(placement_group_table, _TABLE_S)
        found = ((session_of(entry["name"]), _placement(entry)) for entry in table.values())
        return {sid: placement for sid, placement in found if sid is not None and placement is not None}

    async def _ask(self, question: Callable[[], T], timeout_s: float = _ANSWER_S) -> T:
        try:
            with anyio.fail_after(timeout_s):
                return await anyio.to_thread.run_sync(question, abandon_on_cancel=True, limiter=self._threads)
        except TimeoutError as exc:
            raise ClusterAway(f"Ray did not answer within {timeout_s:g} s") from exc
        except RayError as exc:
            raise ClusterAway(_first_line(exc)) from exc


class _AgentActor:
    """What Ray runs on a node."""

    def __init__(self, node: str, address: str, capacity: int, settings: Mapping[str, Any]) -> None:
        self._agent = Agent(RayCluster(), node=node, address=address, capacity=capacity, settings=settings)
        self._agent.start()

    def status(self) -> dict[str, Any]:
        return self._agent.status()

    def stop(self, remove: bool) -> None:
        self._agent.stop(remove=remove)


def _connect(address: str) -> None:
    logging.getLogger("ray").setLevel(logging.ERROR)
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)


def _handle(group: str) -> PlacementGroup:
    return PlacementGroup(ray.PlacementGroupID.from_hex(group))


def _placement(entry: Mapping[str, Any]) -> Placement | None:
    if not entry or entry["state"] == "REMOVED":
        return None
    nodes: Iterable[str] = entry["bundles_to_node_id"].values()
    placed = entry["state"] == "CREATED"
    return Placement(entry["placement_group_id"], next(iter(nodes), None) if placed else None)


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0]
