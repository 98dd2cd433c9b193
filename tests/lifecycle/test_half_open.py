"""Clients that are there and don't read, that vanish without a word, and that all come back at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from host import streams
from tests.docker.conftest import client, host, shared_host
from tests.docker.harness import Client, RunningHost
from tests.host.conftest import state_dir
from tests.host.fakes import FakeEngine, ok
from tests.host.served import serving, until
from tests.lifecycle.hosts import measure

__all__ = ["client", "host", "shared_host", "state_dir"]

LARGE = 16 * 1024**2


def half_open(url: str, sid: str, call_id: str, name: str, **tool_input: object) -> socket.socket:
    """Start a call on a socket that takes next to nothing, and is never read."""
    address, port = url.removeprefix("http://").split(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect((address, int(port)))
    body = json.dumps({"name": name, "input": tool_input, "task_id": call_id}).encode()
    head = f"POST /any/call HTTP/1.1\r\nHost: x\r\nX-Session-ID: {sid}\r\nContent-Length: {len(body)}\r\n\r\n"
    sock.sendall(head.encode() + body)
    return sock


def read_all(sock: socket.socket) -> bytes:
    taken = b""
    with contextlib.suppress(ConnectionResetError):
        while data := sock.recv(1 << 20):
            taken += data
    return taken


async def test_clients_that_stop_reading_cost_no_more_than_their_results(host: RunningHost, client: Client) -> None:
    """Eight of them, each owed 16 MB: others go on, the host doesn't buffer what isn't taken, the results can be had."""
    session, other = await client.create(), await client.create()
    await session.call("echo", call_id="first", text="x" * 1024, times=LARGE // 1024)  # what a result costs once
    before = measure(host.process.pid).rss_bytes
    socks = [half_open(host.url, session.sid, "first", "echo") for _ in range(8)]
    await until(lambda: measure(host.process.pid).descriptors >= 8)
    for n in range(20):
        async with asyncio.timeout(5):
            assert (await other.call("count")).text == str(n + 1)
    grown = measure(host.process.pid).rss_bytes - before
    assert grown < 4 * LARGE, f"{grown >> 20} MiB for {8 * LARGE >> 20} MiB that nobody takes"
    for _ in range(2):
        assert (await session.call("echo", call_id="first")).text == "x" * LARGE
    for sock in socks:
        sock.close()
    await asyncio.gather(session.delete(), other.delete())


async def test_a_client_that_vanishes_in_a_call_finds_its_result(host: RunningHost, client: Client) -> None:
    """Without FIN: its end of the connection stays open, and silent."""
    session = await client.create()
    sock = half_open(host.url, session.sid, "gone", "bash", command="echo ran >> ran; sleep 1; cat ran")
    sock.settimeout(10)
    assert sock.recv(16)  # it has begun
    assert [(await session.call("bash", call_id="gone")).text for _ in range(2)] == ["ran\n"] * 2
    await session.delete()
    sock.close()


async def test_a_hundred_come_back_to_one_call(host: RunningHost, client: Client) -> None:
    session = await client.create()
    command = "echo ran >> ran; sleep 2; cat ran"
    async with session.calling("bash", call_id="storm", command=command):
        pass

    async def again(_n: int) -> str:
        return (await session.call("bash", call_id="storm", command=command)).text

    started = time.monotonic()
    assert await asyncio.gather(*map(again, range(100))) == ["ran\n"] * 100
    assert await asyncio.gather(*map(again, range(100))) == ["ran\n"] * 100  # of what is kept
    assert time.monotonic() - started < 30
    assert (await session.call("bash", command="cat ran")).text == "ran\n"
    await session.delete()


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with FakeEngine.open() as engine:
        yield engine


async def test_a_client_that_does_not_read_is_let_go(
    fake: FakeEngine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a while its connection is closed, whether or not it answers the kernel's probes, and its session is idle."""
    monkeypatch.setattr(streams, "_WRITE_S", 0.2)
    fake.script.handlers["call"] = ok("x" * LARGE)
    async with serving(state_dir, fake, idle_timeout_s=1) as server:
        await server.create()
        url = str(server.client._base_url).rstrip("/")
        with half_open(url, "s1", "large", "bash") as sock:
            await until(lambda: len(server.sessions) == 0)
            sock.settimeout(10)
            taken = await asyncio.to_thread(read_all, sock)
        assert 0 < len(taken) < LARGE
        assert b"event: end" not in taken
