"""ors-host on a Ray cluster whose nodes are all on this machine, each a host of its own behind one front."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.episodes import Server
from bench.ours import OurHost, remove_all
from bench.processes import arguments, tree
from bench.servers import ServerFailed, free_port, running
from deploy.cluster.local import LocalCluster, Node, local_cluster
from host import docker_client
from host.engine import LABEL_SERVER

_READY_TIMEOUT_S = 90.0


@dataclass(frozen=True)
class NodeProcesses:
    """One node's processes by what they are for."""

    head: list[int]
    """What only the head has: Ray's directory (GCS), and what else is started with it."""
    ray: list[int]
    """Ray's own on every node: the raylet and what it starts for itself."""
    agent: list[int]
    host: list[int]
    """The node's ors-host."""


@dataclass(frozen=True)
class RayHost:
    """A front, and the nodes behind it."""

    server: Server
    pid: int
    cluster: LocalCluster
    engine: docker_client.APIClient

    @property
    def pids(self) -> list[int]:
        """The front's processes."""
        return tree(self.pid)

    def node(self, number: int = 0) -> OurHost:
        """Return one node's host as if it were alone: its containers, and its process."""
        node = self.cluster.nodes[number]
        server_id = (node.state_dir / "server-id").read_text()
        return OurHost(self.server, processes_of(node).host[0], server_id, self.engine)


def processes_of(node: Node) -> NodeProcesses:
    """Tell a node's processes apart."""
    head: list[int] = []
    ray: list[int] = []
    agent: list[int] = []
    host: list[int] = []
    for pid in node.pids():
        words = arguments(pid)
        text = " ".join(words)
        if pid in host or pid == node.process.pid:  # `ray start --block` only waits
            continue
        if "host.cluster.node_host" in words:
            host += tree(pid)
        elif text.startswith("ray::_AgentActor"):
            agent.append(pid)
        elif any(
            name in text for name in ("gcs_server", "autoscaler", "dashboard/dashboard.py", "ray.util.client.server")
        ):
            head.append(pid)
        else:
            ray.append(pid)
    return NodeProcesses(head, ray, agent, host)


@asynccontextmanager
async def ray_host(image: str, *, nodes: int, sandboxes: int, warm: int = 0) -> AsyncIterator[RayHost]:
    """Run a cluster and a front of it until the block is left; whatever became of them, their containers are gone then.

    Args:
        sandboxes: how many sessions each node takes.
        warm: how many containers each node keeps ready.

    Raises:
        servers.ServerFailed: a host ended, or there are not so many nodes in time.
        deploy.cluster.local.ClusterFailed: Ray did not start.
    """
    port = free_port()
    with (
        tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as folder,
        contextlib.closing(docker_client.connect()) as engine,
        local_cluster(*[sandboxes] * nodes) as cluster,
    ):
        command = [sys.executable, "-m", "host", "serve", "--port", str(port), "--state-dir", f"{folder}/s"]
        command += ["--engine", "ray", "--ray-address", cluster.address, "--image", image, "--on-exit", "remove"]
        command += ["--warm", str(warm), "--warm-max", str(max(warm, 1)), "--queue-size", str(nodes * sandboxes)]
        log = Path(folder) / "log"
        try:
            async with running(command, name="ors-host", port=port, environ={}, log=log, asking="/ready") as pid:
                await _wait_ready(cluster, nodes)
                yield RayHost(Server("ors-host on Ray", port), pid, cluster, engine)
        finally:
            for node in cluster.nodes:
                if (file := node.state_dir / "server-id").exists():
                    remove_all(engine, f"{LABEL_SERVER}={file.read_text()}")


async def nodes_of(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Return what ``ors-host nodes --json`` says."""
    command = [sys.executable, "-m", "host", "nodes", "--ray-address", cluster.address, "--json"]
    asking = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    printed, _ = await asking.communicate()
    found: list[dict[str, Any]] = json.loads(printed or b"[]")
    return found


async def _wait_ready(cluster: LocalCluster, number: int) -> None:
    said: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(_READY_TIMEOUT_S):
            while sum(node["state"] == "ready" for node in said) < number:
                said = await nodes_of(cluster)
    except TimeoutError:
        raise ServerFailed(f"{number} nodes are not ready within {_READY_TIMEOUT_S:g} s: {said}") from None
