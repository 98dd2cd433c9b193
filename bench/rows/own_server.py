"""A tool call in an image that runs an SDK's own server: through ors-host, and asked directly, with the same limits."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bench.context import Bench
from bench.episodes import Server, Session
from bench.floor import LABEL
from bench.images import SERVER_IMAGE
from bench.ours import OurHost, our_host
from bench.rows.calls import compared, in_turn
from bench.servers import free_port
from bench.table import SERVER_CALL, Row
from bench.wire import Connection, RequestFailed, request_bytes
from host import docker_client

_START_TIMEOUT_S = 60.0


async def call(bench: Bench) -> list[Row]:
    """Measure single calls: one session in a container of the host's, one in a container that is asked directly."""
    plan = bench.plan
    async with (
        our_host([SERVER_IMAGE], max_sessions=4) as host,
        _directly(host) as reference,
        Session.open(host.server) as ours,
        Session.open(reference) as theirs,
    ):
        for session in (ours, theirs):
            await session.check()
        pair = (ours, host.server), (theirs, reference)
        sides = await in_turn(bench, SERVER_CALL, pair, plan.call_rounds, plan.calls_per_round)
    note = "the same image on both sides, the same limits; the one that is asked directly has the machine's network"
    return [compared(SERVER_CALL, *sides, note=note)]


@asynccontextmanager
async def _directly(host: OurHost) -> AsyncIterator[Server]:
    """Run the image as the host runs it, but where a client reaches its server without any detour."""
    pattern, port = host.pattern(), free_port()
    host_config = copy.deepcopy(pattern["HostConfig"])
    host_config["NetworkMode"] = "host"
    config = {
        "Image": SERVER_IMAGE,
        "Env": [*pattern["Config"]["Env"], f"PORT={port}"],
        "Labels": {LABEL: str(os.getpid())},
        "HostConfig": host_config,
    }
    container: str = host.engine.create_container_from_config(config)["Id"]  # type: ignore[no-untyped-call]
    try:
        host.engine.start(container)
        await _wait_healthy(port)
        yield Server("the server itself", port)
    finally:
        with contextlib.suppress(docker_client.NotFound):
            host.engine.remove_container(container, force=True, v=True)


async def _wait_healthy(port: int) -> None:
    async with asyncio.timeout(_START_TIMEOUT_S):
        while True:
            with contextlib.suppress(OSError, RequestFailed):
                connection = await Connection.connect(port)
                try:
                    if (await connection.ask(request_bytes("GET", "/health", {}))).status == 200:
                        return
                finally:
                    connection.close()
            await asyncio.sleep(0.05)
