"""Sockets inside another network, and only inside the right one."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from host.netns import Namespaces, NoEntry

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="entering a network needs root")

_LISTEN = """
import socket, subprocess, sys
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
sock = socket.create_server(("127.0.0.1", 8099))
print("listening", flush=True)
sock.accept()[0].sendall(b"from inside")
sys.stdin.read()
"""


@pytest.fixture
def inside() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a network of its own that listens there, and greets one caller."""
    process = subprocess.Popen(
        ["unshare", "--net", sys.executable, "-c", _LISTEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"listening\n"
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
async def namespaces() -> AsyncIterator[Namespaces]:
    namespaces = Namespaces()
    yield namespaces
    namespaces.close()


def marker(pid: int) -> str:
    """Something that is in the process's control groups, where a container's id would be."""
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()[0].rpartition(":")[2]


async def test_a_socket_is_inside_and_this_process_is_not(
    inside: subprocess.Popen[bytes], namespaces: Namespaces
) -> None:
    own = os.stat("/proc/self/ns/net").st_ino
    namespace = await namespaces.enter(inside.pid, marker(inside.pid))
    with await namespace.socket(socket.AF_INET) as sock:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", 8099))
        assert await loop.sock_recv(sock, 100) == b"from inside"
    namespace.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", 8099))
    tasks = [os.stat(f"/proc/self/task/{task}/ns/net").st_ino for task in os.listdir("/proc/self/task")]
    assert set(tasks) == {own}  # also the thread that was inside


async def test_a_namespace_that_was_let_go_of_makes_no_socket(
    inside: subprocess.Popen[bytes], namespaces: Namespaces
) -> None:
    namespace = await namespaces.enter(inside.pid, marker(inside.pid))
    waiting = [asyncio.ensure_future(namespace.socket(socket.AF_INET)) for _ in range(3)]
    await asyncio.sleep(0)
    namespace.close()
    for made in waiting:  # asked for before: made before it is closed, never in what has its number afterwards
        (await made).close()
    with pytest.raises(OSError, match="let go of"):
        await namespace.socket(socket.AF_INET)


async def test_a_process_that_is_not_the_containers(inside: subprocess.Popen[bytes], namespaces: Namespaces) -> None:
    with pytest.raises(NoEntry, match="is not the container's"):
        await namespaces.enter(inside.pid, "f" * 64)


async def test_our_own_network_is_never_taken_for_a_containers(namespaces: Namespaces) -> None:
    with pytest.raises(NoEntry, match="no network of its own"):
        await namespaces.enter(os.getpid(), marker(os.getpid()))


async def test_a_process_that_is_gone(inside: subprocess.Popen[bytes], namespaces: Namespaces) -> None:
    inside.kill()
    inside.communicate()
    with pytest.raises(NoEntry, match="can't be seen from here"):
        await namespaces.enter(inside.pid, "")


async def test_a_socket_that_nobody_waits_for_is_closed(
    inside: subprocess.Popen[bytes], namespaces: Namespaces
) -> None:
    namespace = await namespaces.enter(inside.pid, marker(inside.pid))
    before = len(os.listdir("/proc/self/fd"))
    making = asyncio.ensure_future(namespace.socket(socket.AF_INET))
    await asyncio.sleep(0)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    (await namespace.socket(socket.AF_INET)).close()  # after it, in the same thread
    await asyncio.sleep(0)
    assert len(os.listdir("/proc/self/fd")) == before
