"""A Ray cluster of several nodes on this machine, to try ``ors-host --engine ray`` on: ``python -m deploy.cluster.local``.

Each node is what ``ray start`` makes of a machine, at a loopback address of its own, with its own directory for the state of
the ``ors-host`` that will run there. Nobody but this machine reaches it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

RESOURCE = "ors_sandbox"
"""The resource by which Ray knows how many sessions a node takes."""

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 30
_OBJECT_STORE_BYTES = 80 * 1024**2  # the least that Ray takes; nothing of ours is in there
# Of Ray's processes, each of which takes a second to start, those that nobody needs here are left out.
_BARE = ("--disable-usage-stats", "--include-log-monitor=false")
_BARE_HEAD = ("--include-dashboard=false", "--no-monitor")
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1"}


class ClusterFailed(Exception):
    """A node did not start; the message has the end of its log."""


@dataclass
class Node:
    """One ``ray start``: the process that stays in the foreground, and all that is below it."""

    address: str
    directory: Path
    process: subprocess.Popen[bytes]

    @property
    def state_dir(self) -> Path:
        """State directory of the ``ors-host`` that an agent starts here."""
        return self.directory / "s"

    @property
    def log(self) -> str:
        """What ``ray start`` has said."""
        return (self.directory / "log").read_text(errors="replace")

    def pids(self) -> list[int]:
        """Return all its processes, from the top down."""
        return below(self.process.pid)

    def pid_of(self, program: str) -> int:
        """Return the process whose program's file has this name (``raylet``, ``gcs_server``).

        Raises:
            LookupError: there is none, or there are several.
        """
        found = [pid for pid in self.pids() if Path(words_of(pid)[0]).name == program]
        if len(found) != 1:
            raise LookupError(f"{len(found)} processes {program} on {self.address}")
        return found[0]

    def kill(self) -> None:
        """End all of it at once, as a power failure does; containers stay."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it in order, as ``ray stop`` does."""
        left = self.pids()
        for signum in (signal.SIGTERM, signal.SIGCONT):  # it may have been halted
            self.process.send_signal(signum)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_STOP_TIMEOUT_S)
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while (left := [pid for pid in left if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


class LocalCluster:
    """Nodes in ``directory``, whose path must be short: there are sockets in it."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._net = f"127.{random.randint(1, 254)}.{random.randint(0, 254)}"
        self.nodes: list[Node] = []
        self.address = f"{self._net}.1:{_free_port(f'{self._net}.1')}"
        """Where the head listens, for ``--ray-address``."""

    @property
    def head(self) -> Node:
        """The node that also has the cluster's directory (GCS)."""
        return self.nodes[0]

    def launch(
        self,
        sandboxes: int,
        *,
        cpus: int = 64,
        memory_bytes: int = 256 * 1024**3,
        environ: Mapping[str, str] | None = None,
        again: Node | None = None,
    ) -> Node:
        """Start a node, the first as the head, without waiting for it.

        Args:
            sandboxes: how many sessions it takes.
            cpus: what Ray is to believe that it has, as is ``memory_bytes``.
            environ: variables that its processes have besides this one's.
            again: a node that has ended, whose address and directory this one gets.
        """
        number = len(self.nodes) + 1
        address = again.address if again else f"{self._net}.{number}"
        directory = again.directory if again else self._directory / f"n{number}"
        directory.mkdir(exist_ok=True)
        head = not self.nodes or again is self.nodes[0]
        port = self.address.rpartition(":")[2]
        where = [f"--address={self.address}"]
        if head:  # the second port is of no use here; two clusters on one machine would have the same
            where = ["--head", f"--port={port}", f"--ray-client-server-port={_free_port(address)}", *_BARE_HEAD]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *_BARE, *where]
        command += [f"--node-ip-address={address}", f"--num-cpus={cpus}", f"--memory={memory_bytes}"]
        command += [f"--object-store-memory={_OBJECT_STORE_BYTES}", f"--resources={json.dumps({RESOURCE: sandboxes})}"]
        command += [
            f"--temp-dir={directory / 'r'}"
        ]  # one for all, and two that start at the same time want the same sockets
        variables = {**os.environ, **_QUIET, "ORS_HOST_STATE_DIR": str(directory / "s"), **(environ or {})}
        with (directory / "log").open("ab") as log:
            # In a session of its own: Ctrl-C reaches this process only, which then ends the nodes in order.
            process = subprocess.Popen(command, stdout=log, stderr=log, env=variables, start_new_session=True)
        node = Node(address, directory, process)
        if again:
            self.nodes[self.nodes.index(again)] = node
        else:
            self.nodes.append(node)
        return node

    def wait(self, *nodes: Node) -> None:
        """Wait until they run.

        Raises:
            ClusterFailed: one doesn't.
        """
        deadline = time.monotonic() + _START_TIMEOUT_S
        for node in nodes:
            while not any(" runtime started" in line for line in node.log.splitlines()):
                if node.process.poll() is not None or time.monotonic() > deadline:
                    raise ClusterFailed(f"ray start on {node.address}:\n{node.log[-3000:]}")
                time.sleep(0.05)

    def remove(self, node: Node) -> None:
        """End a node in order and forget it."""
        node.stop()
        self.nodes.remove(node)

    def close(self) -> None:
        """End all nodes, the head last."""
        for node in reversed(self.nodes):
            node.stop()


@contextmanager
def local_cluster(*sandboxes: int) -> Iterator[LocalCluster]:
    """A cluster with a node for each number, which is how many sessions it takes; it is gone when the block is left.

    Raises:
        ClusterFailed: a node did not start.
    """
    directory = Path(tempfile.mkdtemp(prefix="ors-", dir="/tmp"))
    cluster = LocalCluster(directory)
    try:
        if sandboxes:
            cluster.wait(cluster.launch(sandboxes[0]))
            cluster.wait(*[cluster.launch(number) for number in sandboxes[1:]])
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(directory, ignore_errors=True)


def below(pid: int) -> list[int]:
    """Return a process and all below it, as far as they are there."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{entry}/stat").read_text().rpartition(") ")[2].split()
                children.setdefault(int(stat[1]), []).append(int(entry))
    found = [pid] if is_alive(pid) else []
    for each in found:
        found += children.get(each, [])
    return found


def words_of(pid: int) -> list[str]:
    """Return the words that a process was started with; [""] if it is gone."""
    with contextlib.suppress(OSError):
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    return [""]


def is_alive(pid: int) -> bool:
    """Return True if a process is there and has not ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    return False


def _free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


@click.command()
@click.option("--nodes", default=3, show_default=True, help="How many.")
@click.option("--sessions", default=8, show_default=True, help="How many sessions each takes.")
def main(nodes: int, sessions: int) -> None:
    """Run a Ray cluster on this machine until Ctrl-C."""
    try:
        with local_cluster(*[sessions] * nodes) as cluster:
            click.echo(f"{nodes} nodes run. In another terminal:")
            click.echo(f"  ors-host --engine ray --ray-address {cluster.address} --image TAG")
            signal.sigwait({signal.SIGINT, signal.SIGTERM})
    except ClusterFailed as exc:
        sys.exit(f"deploy.cluster.local: {exc}")


if __name__ == "__main__":
    main()
