"""Ray's head dies: sessions that are there go on, new ones are told to wait."""

from __future__ import annotations

import asyncio
import os
import signal

from deploy.cluster.local import local_cluster
from tests.cluster.observer import observer
from tests.cluster.stage import Stage, remove_containers


async def test_the_head_dies(probe_image: str) -> None:
    with local_cluster(4) as cluster, observer(cluster.address) as asked:
        made = Stage(probe_image, cluster, asked)
        try:
            with made.front() as front:
                await asyncio.to_thread(made.wait_ready, 1)
                async with front.client() as client:
                    session = await client.create({"n": 3})
                    assert (await session.call("count")).text == "1"
                    async with session.calling("bash", command="sleep 3; echo done") as stream:
                        cluster.head.process.send_signal(
                            signal.SIGSTOP
                        )  # with --block it would end the node's raylet too
                        os.kill(cluster.head.pid_of("gcs_server"), signal.SIGKILL)
                        assert (await stream.reply()).text == "done\n"
                    assert (await session.call("count")).text == "2"
                    assert (await session.get("/any/prompt"))[1][0]["text"] == "task 3"
                    late = client.session()
                    async with client.http.post("/create", json={"task_spec": {}}, headers=late.headers) as response:
                        assert response.status == 503, await response.text()
                        assert response.headers["X-Backend-State"] == "starting"
                        assert response.headers["Retry-After"].isdigit()
                    async with client.http.get("/health") as response:
                        assert response.status == 200
                    async with client.http.get("/ready") as response:
                        assert response.status == 503
                        assert "Ray" in await response.text()
                    async with client.http.get("/probe/tools") as response:
                        assert response.status == 200
                    await session.delete()
        finally:
            remove_containers(made)
