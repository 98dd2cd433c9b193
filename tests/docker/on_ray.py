"""The tests of one host, with a Ray cluster of one node in its place: ``ORS_TEST_ENGINE=ray pytest …``.

A front stands where the host stood. Containers and directories are looked for on the node, and its host's log is read too.
What can't hold there is in ``NOT_ON_RAY``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from deploy.cluster.local import LocalCluster, local_cluster

IS_CHOSEN = os.environ.get("ORS_TEST_ENGINE") == "ray"

NOT_ON_RAY = {
    "tests/docker/test_startup.py": "it is about the command line of one host",
    "tests/docker/test_commands.py": "it is about commands that look at the state directory of one host",
    "tests/docker/test_authoring.py": "it is about the commands of authors, which have a private host",
    "tests/docker/test_tracing.py": "a front makes no spans of its own; its nodes' hosts make them",
    "tests/docker/test_recovery.py": "a front that is killed leaves its nodes' hosts alive (tests/cluster/test_failures.py)",
    "tests/docker/test_pool.py::test_the_next_host_removes_them": "the same",
    "tests/docker/test_faults.py::test_two_hosts_leave_each_other_alone": "it is about two hosts on one engine",
    "tests/docker/test_faults.py::test_the_engine_goes_away": "a node whose engine is away takes no sessions",
    "tests/strangers/test_node_env.py::test_a_killed_host_is_succeeded": "as tests/docker/test_recovery.py",
    "tests/strangers/test_node_env.py::test_what_the_engine_makes_for_a_killed_host_counts_for_the_next": "the same",
}
"""Beginnings of tests' ids, and why."""

_running: dict[Path, LocalCluster] = {}
"""By the state directory: a host that is started again finds its cluster."""


def skip(items: Iterable[pytest.Item]) -> None:
    """Skip what can't hold there, if that is where the tests run."""
    if not IS_CHOSEN:
        return
    for item in items:
        if (why := next((why for start, why in NOT_ON_RAY.items() if item.nodeid.startswith(start)), None)) is not None:
            item.add_marker(pytest.mark.skip(reason=f"not on Ray: {why}"))


@contextmanager
def ray_instead(state_dir: Path, environ: Mapping[str, str], settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Have a cluster whose one node has this state directory; give the settings that make a host its front."""
    flags = {"on_exit": "remove", **settings}
    sandboxes = int(flags.pop("max_sessions", 64))
    if (cluster := _running.get(state_dir)) is not None:
        yield {**flags, "engine": "ray", "ray_address": cluster.address}
        return
    with local_cluster() as cluster:
        cluster.wait(cluster.launch(sandboxes, environ={**environ, "ORS_HOST_STATE_DIR": str(state_dir)}))
        _running[state_dir] = cluster
        try:
            yield {**flags, "engine": "ray", "ray_address": cluster.address}
        finally:
            del _running[state_dir]


def node_log(state_dir: Path) -> str:
    """Return what the hosts of the node with this state directory have logged."""
    if (cluster := _running.get(state_dir)) is None:
        return ""
    logs = cluster.head.directory.glob("r/session_latest/logs/worker-*.err")
    return "".join(log.read_text(errors="replace") for log in logs)
