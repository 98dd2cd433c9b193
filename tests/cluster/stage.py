"""A cluster of three nodes with a front, and what tests ask of it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.cluster.local import LocalCluster, Node, local_cluster, words_of
from tests.cluster.observer import Observer, observer
from tests.docker.harness import RunningHost, running_host

SANDBOXES = 4
"""How many sessions each node takes."""

SETTINGS: dict[str, Any] = {
    "memory": "256MiB",
    "cpus": 0.5,
    "queue_timeout": 5,
    "queue_size": 64,
    "idle_timeout": 120,
    "on_exit": "keep",
}
"""Of all fronts: those of one cluster must agree."""


class Stage:
    """The cluster and its first front."""

    def __init__(self, image: str, cluster: LocalCluster, asked: Observer) -> None:
        self.image = image
        self.cluster = cluster
        self.observer = asked

    @contextmanager
    def front(self, **settings: Any) -> Iterator[RunningHost]:
        """A front of one's own, on a free port or a given one."""
        given = {**SETTINGS, "engine": "ray", "ray_address": self.cluster.address, **settings}
        with running_host(self.image, **given) as front:
            yield front

    def host_of(self, node: Node) -> RunningHost:
        """The host on a node, to be asked for its containers."""
        return RunningHost(node.process, 0, node.state_dir, node.directory / "log")

    def node_of(self, sid: str) -> Node:
        """Return the node that has a session.

        Raises:
            LookupError: none has.
        """
        for node in self.cluster.nodes:
            try:
                self.host_of(node).container(sid)
            except (LookupError, FileNotFoundError):
                continue
            return node
        raise LookupError(f"no node has session {sid}")

    def groups(self) -> list[dict[str, Any]]:
        """Return the reservations of sessions that Ray has, waiting ones included."""
        return [group for group in self.observer.groups() if group["name"].startswith("ors-session-")]

    def nodes(self) -> list[dict[str, Any]]:
        """Return what ``ors-host nodes --json`` says."""
        command = [sys.executable, "-m", "host", "nodes", "--ray-address", self.cluster.address, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        found: list[dict[str, Any]] = json.loads(done.stdout)
        return found

    def wait_ready(self, number: int, timeout_s: float = 60) -> list[dict[str, Any]]:
        """Wait until so many nodes are ready; return what is said of all."""
        said: list[dict[str, Any]] = []

        def ready() -> bool:
            said[:] = self.nodes()
            return [node["state"] for node in said].count("ready") == number

        wait_for(ready, timeout_s, lambda: json.dumps(said, indent=1))
        return said

    def assert_empty(self) -> None:
        """See that no session has left anything: no reservation, container or directory of it."""
        wait_for(lambda: self.groups() == [], 10, lambda: str(self.groups()))
        for node in self.cluster.nodes:
            host = self.host_of(node)
            wait_for(lambda: host.containers(role="session") == [], 10, lambda: str(host.containers()))  # noqa: B023
            assert len(host.directories()) == 1  # the catalog's


@contextmanager
def stage(image: str) -> Iterator[Stage]:
    """Three nodes, without a front yet. The last front has to end with ``remove``: then nothing may be left."""
    with local_cluster(SANDBOXES, SANDBOXES, SANDBOXES) as cluster, observer(cluster.address) as asked:
        made = Stage(image, cluster, asked)
        try:
            yield made
            assert made.observer.groups() == []
            assert made.observer.actors() == []
            for node in cluster.nodes:
                host = made.host_of(node)
                assert host.containers() == []
                assert host.directories() == []
        finally:
            remove_containers(made)


def remove_containers(made: Stage) -> None:
    """Remove what a test that failed has left."""
    for node in made.cluster.nodes:
        if (node.state_dir / "server-id").exists():
            for container in made.host_of(node).containers():
                subprocess.run(["docker", "rm", "--force", container["Id"]], capture_output=True)


def agent_of(node: Node) -> tuple[int, int]:
    """Return the processes of a node's agent and of the host that it has started."""
    (host,) = [pid for pid in node.pids() if "serve" in words_of(pid) and "host" in " ".join(words_of(pid)[:4])]
    return int(Path(f"/proc/{host}/stat").read_text().rpartition(") ")[2].split()[1]), host


def wait_for(condition: Callable[[], bool], timeout_s: float, words: Callable[[], str] = str) -> None:
    """Wait for what nothing announces, or fail with words."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, words()
        time.sleep(0.05)
