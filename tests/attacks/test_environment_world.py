"""The environment against what is around it: the network, the machine, other containers, the places that the host looks at.

Each is a command of the container's root. Where this machine lets anybody succeed, it is run without defences first.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from host import docker_client
from tests.attacks.board import ENVIRONMENT, attack
from tests.attacks.hosts import memory_mb
from tests.attacks.targets import DONE, WEAK_LABEL
from tests.docker.harness import RunningHost, Session

pytestmark = pytest.mark.asyncio(loop_scope="module")

RecordProperty = Callable[[str, object], None]


class Escape(NamedTuple):
    """``command`` prints the mark if it succeeds."""

    id: str
    what: str
    command: str
    shown: bool = True


def python(program: str) -> str:
    head = "import ctypes, os, socket\nsocket.setdefaulttimeout(1)\nlibc = ctypes.CDLL(None, use_errno=True)"
    return f"timeout 5 python3 - <<'EOF'\n{head}\n{program}\nprint('{DONE}')\nEOF"


def dial(host: str, port: object) -> str:
    return python(f"socket.create_connection(({host!r}, {port}))")


def mount(kind: str, options: str = "") -> str:
    return python(
        f"os.makedirs('/tmp/m', exist_ok=True)\nassert libc.mount(b'x', b'/tmp/m', b'{kind}', 0, b'{options}') == 0"
    )


AS_AGENT = "setpriv --reuid=10000 --clear-groups"
ESCAPES = [
    Escape("G01", "have a network interface", f"ls /sys/class/net | grep -vx lo | grep -q . && echo {DONE}"),
    Escape("G02", "reach a port of the machine", dial("MACHINE", "PORT")),
    Escape("G03", "reach a port of the host's on loopback", dial("127.0.0.1", "PORT")),
    Escape("G04", "reach the metadata service of a cloud", dial("169.254.169.254", 80), shown=False),
    Escape("G05", "reach the internet", dial("192.0.2.1", 443), shown=False),
    Escape("G06", "have a route to anywhere", f"[ $(wc -l </proc/net/route) -gt 1 ] && echo {DONE}"),
    Escape("G07", "resolve a name", python("socket.getaddrinfo('example.com', 80)"), shown=False),
    Escape("G08", "send raw packets", python("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)")),
    Escape("G09", "send pings", python("socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)")),
    Escape("G10", "speak with the engine", python("socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')")),
    Escape("G11", "put something beside the host's socket", f"touch /run/ors/x && echo {DONE}"),
    Escape("G12", "put a link where the host looks", f"ln -sf /etc/passwd /run/ors/token && echo {DONE}"),
    Escape("G13", "put a fifo where the host looks", f"mkfifo /run/ors/fifo && echo {DONE}"),
    Escape("G14", "put a device where the host looks", f"mknod /run/ors/null c 1 3 && echo {DONE}"),
    Escape("G15", "take the host's socket away", f"rm -f /run/ors/host.sock && echo {DONE}"),
    Escape("G16", "make a device", f"rm -f /tmp/disk; mknod /tmp/disk b 254 0 && echo {DONE}"),
    Escape("G17", "mount a file system", mount("tmpfs")),
    Escape("G18", "mount the machine's control groups", mount("cgroup", "pids"), shown=False),
    Escape("G19", "lift its own limits", f"echo 9999 >/sys/fs/cgroup/pids/pids.max && echo {DONE}", shown=False),
    Escape("G20", "make namespaces", f"unshare --mount --net --pid --fork true && echo {DONE}"),
    Escape("G21", "change its root", f"chroot / true && echo {DONE}"),
    Escape("G22", "load a module", python("assert libc.syscall(175, b'', 0, b'') == 0"), shown=False),
    Escape("G23", "change the kernel's settings", f"echo 1 >/proc/sys/kernel/panic && echo {DONE}", shown=False),
    Escape("G24", "read the kernel's memory", f"head -c 1 /proc/kcore | grep -q . && echo {DONE}", shown=False),
    Escape(
        "G25",
        "run code in the kernel",
        python("assert libc.syscall(321, 5, ctypes.create_string_buffer(128), 128) >= 0"),
        shown=False,
    ),
    Escape(
        "G26",
        "watch the machine's performance counters",
        python("assert libc.syscall(298, ctypes.create_string_buffer(128), -1, 0, -1, 0) >= 0"),
        shown=False,
    ),
    Escape("G27", "set the clock", f"date -s @$(date +%s) >/dev/null && echo {DONE}", shown=False),
    Escape("G28", "rename itself", f"hostname renamed && echo {DONE}"),
    Escape("G29", "give a file away", f"touch /tmp/f && chown 1234 /tmp/f && echo {DONE}"),
    Escape(
        "G30",
        "open what the agent has closed",
        f"{AS_AGENT} bash -c 'umask 077; echo {DONE} >/tmp/own'; cat /tmp/own",
    ),
    Escape(
        "G31",
        "gain rights from a setuid program",
        f"cp /usr/bin/id /tmp/id && chmod 4755 /tmp/id && {AS_AGENT} /tmp/id -u | grep -qx 0 && echo {DONE}",
    ),
    Escape("G32", "see the machine's processes", f"grep -lxs dockerd /proc/[0-9]*/comm | grep -q . && echo {DONE}"),
]


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """A port of this machine's, open on all addresses."""
    with socket.create_server(("0.0.0.0", 0), backlog=64) as server:
        yield int(server.getsockname()[1])


@pytest.fixture(scope="module")
def undefended(hostile_image: str) -> Iterator[Callable[[str], str]]:
    """A function that runs a command in a container without defences."""
    with (
        tempfile.TemporaryDirectory(prefix="ors-", dir="/tmp") as directory,
        contextlib.closing(docker_client.connect()) as engine,
    ):
        Path(directory, "host.sock").touch()
        container = engine.create_container(
            hostile_image,
            entrypoint=["sleep", "3600"],
            labels={WEAK_LABEL: "1"},
            host_config=engine.create_host_config(
                network_mode="host",
                pid_mode="host",
                cap_add=["SYS_ADMIN", "NET_ADMIN", "SYS_PTRACE", "SYS_CHROOT", "MKNOD"],
                security_opt=["seccomp=unconfined"],
                mounts=[
                    docker_client.Mount("/run/ors", directory, type="bind"),
                    docker_client.Mount("/var/run/docker.sock", "/var/run/docker.sock", type="bind"),
                ],
            ),
            user="0:0",
        )["Id"]
        try:
            engine.start(container)

            def run(command: str) -> str:
                made = engine.exec_create(container, ["bash", "-c", command])
                output: bytes = engine.exec_start(made["Id"])
                return output.decode(errors="replace")

            yield run
        finally:
            engine.remove_container(container, force=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def session(hostile_host: RunningHost) -> AsyncIterator[Session]:
    """One session for all."""
    async with hostile_host.client() as client:
        session = await client.create()
        yield session
        await session.delete()


@pytest.mark.parametrize(
    "escape",
    [pytest.param(escape, marks=attack(escape.id, ENVIRONMENT, escape.what), id=escape.id) for escape in ESCAPES],
)
async def test_escape(
    escape: Escape, session: Session, undefended: Callable[[str], str], port: int, record_property: RecordProperty
) -> None:
    command = escape.command.replace("MACHINE", _own_address()).replace("PORT", str(port))
    if escape.shown:
        easily = await asyncio.to_thread(undefended, command)
        assert DONE in easily, f"this attack can't succeed anywhere: {easily}"
        record_property("shown", True)
    reply = await session.call("probe", do="shell", command=command)
    assert DONE not in reply.text, reply.text


def _own_address() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("192.0.2.1", 9))
        return str(sock.getsockname()[0])


@attack("H01", ENVIRONMENT, "fill the disk with a million lines of log")
async def test_a_million_lines(hostile_host: RunningHost) -> None:
    async with hostile_host.client() as client:
        session = await client.create()
        before = memory_mb(hostile_host)
        for _ in range(2):
            async with asyncio.timeout(60):
                reply = await session.call("probe", do="log")
            if reply.event == "error":  # not as fast as that on a slow machine: the call's time was up
                break
        log = Path(hostile_host.inspect(session.sid)["LogPath"]) if reply.event == "end" else None
        if log is not None:
            assert sum(path.stat().st_size for path in log.parent.glob(f"{log.name}*")) < 4 * 2**20
        assert memory_mb(hostile_host) - before < 50
        await session.delete()


@attack("H02", ENVIRONMENT, "take the machine's memory")
async def test_memory_ends_at_the_limit(hostile_host: RunningHost) -> None:
    async with hostile_host.client() as client:
        session = await client.create()
        reply = await session.call("probe", do="eat_memory")
        assert reply.data.startswith("out_of_memory")


@attack("H03", ENVIRONMENT, "take the machine's process ids")
async def test_processes_end_at_the_limit(hostile_host: RunningHost) -> None:
    async with hostile_host.client() as client:
        session = await client.create()
        assert int((await session.call("probe", do="fork")).text) < 64
        await session.delete()


@attack("H04", ENVIRONMENT, "take the machine's processors")
async def test_a_neighbour_of_one_that_spins(hostile_host: RunningHost) -> None:
    async with hostile_host.client() as client:
        spinning, neighbour = await asyncio.gather(client.create(), client.create())
        await spinning.call("probe", do="spin")
        started = time.monotonic()
        for _ in range(20):
            assert (await neighbour.call("probe")).text == "fine"
        assert time.monotonic() - started < 10
        await asyncio.gather(spinning.delete(), neighbour.delete())
