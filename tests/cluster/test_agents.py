"""Agents outlive fronts: what fronts must agree on, how nodes get other settings, and how agents are ended in order."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

from deploy.cluster.local import local_cluster
from tests.cluster.observer import observer
from tests.cluster.stage import SETTINGS, Stage, agent_of, remove_containers, wait_for


async def test_other_settings_and_an_orderly_end(probe_image: str, tmp_path: Path) -> None:
    """A front with other settings says so; it may replace the agents, or they are ended first. No session notices."""
    with local_cluster(4) as cluster, observer(cluster.address) as asked:
        made = Stage(probe_image, cluster, asked)
        try:
            with made.front() as first:
                async with first.client() as client:
                    session = await client.create({"n": 3})
                    assert (await session.call("count")).text == "1"
                for pid in agent_of(cluster.head):  # Ray has its workers die first, but who serves a whole node may not
                    assert _oom_score(pid) == 0
                refused = _serve(made, tmp_path, "--memory", "300MiB", "--cpus", "0.5")
                assert refused.returncode == 1
                assert "other settings" in refused.stderr and "memory" in refused.stderr, refused.stderr
                assert "--replace-agents" in refused.stderr
            with made.front(memory="300MiB", env={"ORS_HOST_REPLACE_AGENTS": "1"}) as second:
                async with second.client() as client:
                    assert (await client.session(session.sid).call("count")).text == "2"
            ended = await asyncio.to_thread(_nodes, made, "--stop")
            assert ended.returncode == 0, ended.stderr
            assert made.observer.actors() == []
            host = made.host_of(cluster.head)
            assert len(host.session_containers()) == 1
            assert len(made.groups()) == 1
            with made.front() as third:
                async with third.client() as client:
                    assert (await client.session(session.sid).call("count")).text == "3"
            ended = await asyncio.to_thread(_nodes, made, "--stop", "--remove", "--yes")
            assert ended.returncode == 0, ended.stderr
            wait_for(lambda: host.containers() == [], 10)
            assert made.groups() == []
        finally:
            remove_containers(made)


def _oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def _serve(made: Stage, state_dir: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "host", "--engine", "ray", "--ray-address", made.cluster.address]
    command += ["--image", made.image, "--port", "0", "--state-dir", str(state_dir), "--warm", "0", *flags]
    command += ["--idle-timeout", str(SETTINGS["idle_timeout"])]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def _nodes(made: Stage, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "host", "nodes", "--ray-address", made.cluster.address, *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=90)
