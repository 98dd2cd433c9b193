"""A burst of creations: never more containers than sessions may be, everybody is served or told, real clients ride it out."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openreward
import ors.client
import pytest

from host import docker_client
from tests.docker.harness import Client, RunningHost, running_host

BURST, LIMIT = 200, 20
QUEUE_TIMEOUT_S = 20
"""Bounds the test: by then everybody has a place, or is told."""


class Census:
    """The sessions' containers of one host, counted from the engine's events."""

    def __init__(self, server_id: str) -> None:
        self.most = self.created = 0
        self._there: set[str] = set()
        self._client = docker_client.connect()
        labels = [f"ors-host.server={server_id}", "ors-host.role=session"]
        self._stream: Any = self._client.events(decode=True, filters={"label": labels, "event": ["create", "destroy"]})
        self._thread = threading.Thread(target=self._count)
        self._thread.start()

    def close(self) -> None:
        self._stream.close()
        self._thread.join()
        self._client.close()

    def _count(self) -> None:
        for event in self._stream:
            if event["Action"] == "create":
                self.created += 1
                self._there.add(event["id"])
            else:
                self._there.discard(event["id"])
            self.most = max(self.most, len(self._there))


@contextmanager
def census(host: RunningHost) -> Iterator[Census]:
    counting = Census(host.server_id)
    try:
        yield counting
    finally:
        counting.close()


@pytest.mark.timeout(180)
async def test_a_burst(probe_image: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        running_host(probe_image, max_sessions=LIMIT, queue_timeout=QUEUE_TIMEOUT_S) as host,
        census(host) as counting,
    ):
        for variable in ("OPENREWARD_SESSION_URL", "OPENREWARD_API_URL"):
            monkeypatch.setenv(variable, host.url)
        async with host.client() as client:
            episodes = [asyncio.to_thread(asyncio.run, play(host.url)) for play in (ors_episode, openreward_episode)]
            outcomes = Counter(await asyncio.gather(*(one(client, n) for n in range(BURST - 2)), *episodes))
    assert counting.most == LIMIT
    assert set(outcomes) <= {"served", "told", "ors", "openreward"}, outcomes
    assert outcomes["ors"] == outcomes["openreward"] == 1
    assert outcomes["served"] >= LIMIT
    assert outcomes.total() == BURST


async def one(client: Client, n: int) -> str:
    """Create, call, delete; return ``served``, or ``told`` if there was no place."""
    session = client.session()
    async with client.http.post("/create", json={"task_spec": {"n": n}}, headers=session.headers) as response:
        if response.status == 503:
            assert response.headers["Retry-After"].isdigit()
            assert response.headers["X-Backend-State"] == "starting"
            assert (await response.json())["reason"] == "capacity"
            return "told"
        assert response.status == 200, await response.text()
    assert (await session.call("count")).text == "1"
    await session.delete()
    return "served"


async def ors_episode(url: str) -> str:
    """One with ors-sdk's client: it gives up after three tries, so it depends on being held in the queue."""
    await episode(ors.client.AsyncORS(base_url=url))
    return "ors"


async def openreward_episode(url: str) -> str:
    """One with openreward's client, which comes again for ten minutes."""
    await episode(openreward.AsyncOpenReward(api_key="unused"))
    return "openreward"


async def episode(client: Any) -> None:
    environment = client.environments.get("probe")
    try:
        async with environment.session(await environment.get_task("train", 1)) as session:
            assert (await session.call_tool("count")).blocks[0].text == "1"
    finally:
        for http in client.environments._clients.values():
            await http.close()
