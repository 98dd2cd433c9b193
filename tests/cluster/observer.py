"""What Ray itself knows of a cluster, asked by a process that does nothing else: ``python -m tests.cluster.observer ADDRESS``.

Reads questions, a line each, and answers with a line of JSON. So the tests' own process is no driver of the cluster.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_ANSWER_S = 30.0


class Observer:
    """The asking side."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def groups(self) -> list[dict[str, Any]]:
        """Return the placement groups that are there: ``name``, ``state``, ``node`` (Ray's id, or None), ``bundle``."""
        found: list[dict[str, Any]] = self._ask("groups")
        return found

    def nodes(self) -> list[dict[str, Any]]:
        """Return the nodes: ``id``, ``address``, ``alive``."""
        found: list[dict[str, Any]] = self._ask("nodes")
        return found

    def actors(self) -> list[str]:
        """Return the names of the actors that have one."""
        found: list[str] = self._ask("actors")
        return found

    def _ask(self, question: str) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(f"{question}\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())


@contextmanager
def observer(address: str) -> Iterator[Observer]:
    """An observer of the cluster whose head listens there."""
    command = [sys.executable, "-m", "tests.cluster.observer", address]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Observer(process)
        finally:
            process.kill()


def _main(address: str) -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Ray tells drivers what it finds worth telling

    import ray
    from ray.util import list_named_actors, placement_group_table

    head = address.rpartition(":")[0]  # the observer is to outlive the other nodes
    ray.init(address=address, _node_ip_address=head, log_to_driver=False, configure_logging=False)
    for line in sys.stdin:
        answer: Any
        match line.strip():
            case "groups":
                answer = [
                    {
                        "name": group["name"],
                        "state": group["state"],
                        "node": next(iter(group["bundles_to_node_id"].values()), None) or None,
                        "bundle": group["bundles"][0],
                    }
                    for group in placement_group_table().values()
                    if group["state"] != "REMOVED"
                ]
            case "nodes":
                answer = [
                    {"id": node["NodeID"], "address": node["NodeManagerAddress"], "alive": node["Alive"]}
                    for node in ray.nodes()  # type: ignore[no-untyped-call]
                ]
            case _:
                answer = [actor["name"] for actor in list_named_actors(all_namespaces=True)]
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
