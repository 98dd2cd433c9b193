"""The life of a front: a router in front of a Ray cluster's nodes. It keeps nothing that another front could not find out."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack, closing

import anyio
import structlog

from host import tracing
from host.app import application
from host.auth import Keys, check_exposure
from host.cluster.agent_status import why_not_this
from host.cluster.directory import Directory
from host.cluster.membership import Membership
from host.cluster.names import AgentAway, ClusterAway, ClusterNode
from host.cluster.node_settings import for_nodes
from host.cluster.ray_cluster import RayCluster
from host.cluster.reconcile import Reconciler
from host.cluster.reservations import Reservations
from host.cluster.router import Router, client
from host.cluster.routes import ClusterRoutes
from host.errors import StartupError
from host.listening import answering_that_it_starts, bind, listening, url_of
from host.metrics import Metrics
from host.notify import notify
from host.settings import Settings
from host.state import StateDir
from host.stopping import until_told

log = structlog.get_logger()


async def serve_cluster(settings: Settings) -> None:
    """Serve until the process is told to stop (SIGTERM, SIGINT); a second signal cuts the ending short.

    Raises:
        StartupError: it can't start; the sentence says why and what to do.
    """
    await until_told(lambda stop, _patience: _serve(settings, stop))


async def _serve(settings: Settings, stop: anyio.Event) -> None:
    keys = Keys.of(settings)
    with closing(StateDir.open(settings.state_dir)) as state, closing(bind(settings)) as sock, ExitStack() as stack:
        keys = keys.with_operator(state.operator_key)
        check_exposure(keys, settings, sock.getsockname()[0])
        stack.enter_context(tracing.running(state.server_id))
        log.info("connecting_to_ray", address=settings.ray_address)
        async with AsyncExitStack() as starting:
            await starting.enter_async_context(answering_that_it_starts(sock, max_connections=settings.max_connections))
            async with RayCluster.open(settings.ray_address) as cluster, client() as http:
                told = for_nodes(settings)
                await _check_agents(cluster, told, replace=settings.replace_agents)
                async with anyio.create_task_group() as tasks:
                    reconciler = Reconciler(cluster, http)
                    membership = Membership(cluster, told, http, on_lost=reconciler.note_lost)
                    reservations = Reservations(cluster, membership, settings)
                    directory = Directory(cluster, membership, http)
                    metrics = Metrics()
                    routes = ClusterRoutes(membership, directory, reservations, Router(http, membership), metrics)
                    _show(metrics, membership, reservations)
                    await membership.look()
                    tasks.start_soon(membership.run)
                    tasks.start_soon(reconciler.run, membership, reservations)
                    await _wait_for_a_node(membership, stop)
                    app = application(
                        routes.table(),
                        routes.elsewhere,
                        max_body_bytes=settings.max_body,
                        body_timeout_s=settings.body_timeout_s,
                        keys=keys,
                    )
                    await starting.aclose()
                    async with listening(app, sock, max_connections=settings.max_connections):
                        url = url_of(sock)
                        state.announce(url)
                        log.info(
                            "serving",
                            url=url,
                            environments=list(membership.environments),
                            nodes=len(membership.usable),
                            server=state.server_id,
                            key_needed=keys.needed,
                        )
                        notify("READY=1")
                        await stop.wait()
                        notify("STOPPING=1")
                        routes.closing = True
                        log.info("stopping", sessions=membership.sessions, on_exit=settings.on_exit)
                        if settings.on_exit == "remove":
                            await _remove_all(cluster)
                    tasks.cancel_scope.cancel()
    log.info("stopped")


async def _check_agents(cluster: RayCluster, told: dict[str, object], *, replace: bool) -> None:
    """See whether the nodes' agents have the settings that this front has; with ``replace``, end those that haven't.

    Raises:
        StartupError: one has others.
    """
    try:
        nodes = [node for node in await cluster.nodes() if node.alive and node.sandboxes > 0]
    except ClusterAway as exc:
        raise StartupError(f"Ray's head doesn't answer: {exc}") from exc
    async with anyio.create_task_group() as tasks:
        for node in nodes:
            tasks.start_soon(_check_agent, cluster, node, told, replace)


async def _check_agent(cluster: RayCluster, node: ClusterNode, told: dict[str, object], replace: bool) -> None:
    try:
        status = await cluster.agent_status(node.id)
    except (AgentAway, ClusterAway):
        return  # it has none yet
    if (mismatch := why_not_this(told, status)) is None:
        return
    if not replace:
        raise StartupError(
            f"node {node.address}: {mismatch}; start with the same, or with --replace-agents to give all nodes this front's "
            "(sessions go on), or end the agents first (ors-host nodes --stop)"
        )
    log.info("agent_replaced", node=node.id, why=mismatch)
    await _stop_agent(cluster, node, remove=False)


async def _remove_all(cluster: RayCluster) -> None:
    try:
        await stop_agents(cluster, remove=True)
    except ClusterAway as exc:
        log.warning("sessions_not_removed", error=str(exc))


async def stop_agents(cluster: RayCluster, *, remove: bool) -> int:
    """End the agents of all nodes, and with ``remove`` all sessions first; return how many there were. Raises ClusterAway."""
    nodes = [node for node in await cluster.nodes() if node.alive and node.sandboxes > 0]
    stopped = 0
    async with anyio.create_task_group() as tasks:

        async def stop(node: ClusterNode) -> None:
            nonlocal stopped
            stopped += await _stop_agent(cluster, node, remove=remove)

        for node in nodes:
            tasks.start_soon(stop, node)
    if remove:
        for sid in await cluster.reservations():
            await cluster.release_session(sid)
    return stopped


async def _stop_agent(cluster: RayCluster, node: ClusterNode, *, remove: bool) -> bool:
    try:
        await cluster.stop_agent(node.id, remove=remove)
    except (AgentAway, ClusterAway) as exc:
        log.warning("agent_not_stopped", node=node.id, error=str(exc))
        return False
    return True


async def _wait_for_a_node(membership: Membership, stop: anyio.Event) -> None:
    """Wait until the environments are known, or there is nothing to wait for: nodes may join later."""
    while not membership.environments and any(node.state == "preparing" for node in membership) and not stop.is_set():
        await membership.wait_looked()
    if not membership.usable:
        log.warning("no_node_ready", nodes=membership.how_nodes_are())


def _show(metrics: Metrics, membership: Membership, reservations: Reservations) -> None:
    show = metrics.show

    def by_state() -> dict[str, float]:
        states = [node.state for node in membership]
        return {state: float(states.count(state)) for state in ("preparing", "ready", "failed")}

    show("ors_host_nodes", "Nodes that take sessions.", by_state, "state")
    show("ors_host_sessions", "Sessions there are, on all nodes.", lambda: membership.sessions)
    show("ors_host_queue", "Creations that wait for a place.", lambda: reservations.waiting)
    show("ors_host_ray_up", "1 if Ray's head answers.", lambda: membership.head_away is None)
