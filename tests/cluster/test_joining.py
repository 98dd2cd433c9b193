"""A node that joins later, with an engine of its own: no sessions until it has the image, its share of them from then on."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.stage import SANDBOXES, Stage, wait_for
from tests.docker.harness import Client, RunningHost
from tests.lifecycle.second_engine import SecondEngine, second_engine

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("dockerd") is None, reason="only root can start an engine, where there is one"
)


@pytest.fixture
def engine() -> Iterator[SecondEngine]:
    with second_engine() as engine:
        engine.start(live_restore=False)
        yield engine


async def test_a_node_joins(
    cluster: Stage, shared_front: RunningHost, client: Client, engine: SecondEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = cluster.cluster.launch(SANDBOXES, environ={"DOCKER_HOST": engine.url})
    try:
        cluster.cluster.wait(node)
        said: dict[str, object] = {}

        def told() -> bool:
            said.update(next(({**each} for each in cluster.nodes() if node.address in str(each["address"])), {}))
            said.update(next(({**each} for each in cluster.nodes() if "image_not_found" in each["words"]), {}))
            return "image_not_found" in str(said.get("words"))

        await asyncio.to_thread(wait_for, told, 40, lambda: str(said))
        assert said["state"] in ("preparing", "failed")
        sessions = await asyncio.gather(*(client.create() for _ in range(6)))
        assert node not in [cluster.node_of(session.sid) for session in sessions]
        await asyncio.to_thread(engine.load, cluster.image)
        await asyncio.to_thread(cluster.wait_ready, 4)
        more = [await client.create() for _ in range(6)]
        texts = await asyncio.gather(*(session.call("count") for session in [*sessions, *more]))
        assert {reply.text for reply in texts} == {"1"}
        with monkeypatch.context() as patch:
            patch.setenv("DOCKER_HOST", engine.url)
            there = cluster.host_of(node).session_containers()
        assert there
        await asyncio.gather(*(session.delete() for session in [*sessions, *more]))
    finally:
        cluster.cluster.remove(node)
