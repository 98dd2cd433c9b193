"""How a stranger's container is shut in, and what its root tries against the host, the machine and other sessions."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.docker.harness import RunningHost, running_host
from tests.strangers.misdoing import Trap

SECRET = "sk-of-a-stranger-4711"


@pytest.fixture(scope="module")
def shared_host(hostile_image: str) -> Iterator[RunningHost]:
    with running_host(hostile_image, kind="server", memory="128MiB", pids=64, max_sessions=8) as host:
        yield host


async def test_the_container_is_shut_in(host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create()
        data = host.inspect(session.sid)
        await session.delete()
    limits = data["HostConfig"]
    assert limits["NetworkMode"] == "none"
    assert limits["CapDrop"] == ["ALL"]
    assert sorted(limits["CapAdd"]) == [
        "CHOWN",
        "DAC_OVERRIDE",
        "FOWNER",
        "FSETID",
        "KILL",
        "NET_BIND_SERVICE",
        "SETGID",
        "SETUID",
    ]
    assert limits["SecurityOpt"] == ["no-new-privileges:true"]
    assert limits["Memory"] == limits["MemorySwap"] == 128 * 1024**2
    assert limits["PidsLimit"] == 64
    assert not limits["Privileged"] and not limits["PublishAllPorts"] and not limits["PortBindings"]
    assert all(not mount["RW"] for mount in data["Mounts"])


async def test_a_server_under_the_strict_profile(hostile_image: str) -> None:
    """Its root is read-only but for the directories that are made for temporary files."""
    with running_host(hostile_image, kind="server", memory="128MiB", isolation="strict") as host:
        async with host.client() as client:
            session = await client.create()
            command = "for d in /srv /etc /tmp /var/tmp; do touch $d/x 2>/dev/null && echo $d; done"
            assert (await session.call("shell", command=command)).text.split() == ["/tmp", "/var/tmp"]
            assert (await session.call("count")).text == "2"
            await session.delete()


async def test_secrets_arrive_and_are_nowhere_else(host: RunningHost) -> None:
    async with host.client() as client:
        session = await client.create({"n": 1}, secrets={"api_key": SECRET})
        assert json.loads((await session.call("secrets")).text) == {"api_key": SECRET}
        metadata = json.dumps(host.inspect(session.sid))
        files = [path.read_bytes() for path in host.state_dir.rglob("*") if path.is_file()]
        await session.delete()
    assert SECRET not in metadata and SECRET not in host.log
    assert not any(SECRET.encode() in content for content in files)


def python(program: str) -> str:
    head = "import ctypes, os, socket\nsocket.setdefaulttimeout(1)\nlibc = ctypes.CDLL(None, use_errno=True)"
    return f"timeout 5 python3 - 2>&1 <<'EOF'\n{head}\n{program}\nprint('DONE')\nEOF"


ESCAPES = {
    "have an interface": "ls /sys/class/net | grep -vx lo | grep -q . && echo DONE",
    "have a route": "[ $(wc -l </proc/net/route) -gt 1 ] && echo DONE",
    "reach the machine": python("socket.create_connection(('MACHINE', PORT))"),
    "reach the machine's loopback": python("socket.create_connection(('127.0.0.1', PORT))"),
    "find sockets of the host's": "[ $(wc -l </proc/net/unix) -gt 1 ] && echo DONE",
    "see the host's process": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -q 'ors-[h]ost' && echo DONE",
    "speak with the engine": python("socket.socket(socket.AF_UNIX).connect('/var/run/docker.sock')"),
    "make a device": "mknod /tmp/disk b 254 0 && echo DONE",
    "mount": python("os.makedirs('/tmp/m', exist_ok=True)\nassert libc.mount(b'x', b'/tmp/m', b'tmpfs', 0, b'') == 0"),
    "make namespaces": "unshare --net --mount true && echo DONE",
    "enter the machine's namespaces": "nsenter --net=/proc/1/ns/net --mount=/proc/1/ns/mnt true && echo DONE",
    "configure the network": python(
        "import fcntl, struct\ns = socket.socket()\nfcntl.ioctl(s, 0x8914, struct.pack('16sh14x', b'lo', 0))"
    ),
    "send raw packets": python("socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 768)"),
    "change the kernel's settings": "echo 1 >/proc/sys/kernel/panic && echo DONE",
}


async def test_what_its_root_can_not_do(host: RunningHost) -> None:
    with closing(socket.create_server(("0.0.0.0", 0))) as listener:
        listener.setblocking(False)
        port = str(listener.getsockname()[1])
        async with host.client() as client:
            session = await client.create()
            for what, command in ESCAPES.items():
                command = command.replace("PORT", port).replace("MACHINE", machine_address())
                output = (await session.call("shell", command=f"{{ {command}\n}} 2>&1; echo over")).text
                assert "over" in output and "DONE" not in output, (what, output)
            assert json.loads((await session.call("state")).text)["calls"] == len(ESCAPES) + 1
            await session.delete()
        with pytest.raises(BlockingIOError):
            listener.accept()


def machine_address() -> str:
    """Return an address of this machine's that is not loopback, if it has one."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        return str(sock.getsockname()[0])


async def test_a_port_is_its_own_sessions(host: RunningHost) -> None:
    """Two servers on the same port of two containers: each is asked by its own session's client only."""
    async with host.client() as client:
        one, two = await client.create({"n": 1}), await client.create({"n": 2})
        for _ in range(3):
            await one.call("count")
        assert (await two.call("count")).text == "1"
        state = json.loads((await two.call("state")).text)
        assert (state["sessions"], state["calls"]) == (1, 2)
        for session in (one, two):
            await session.delete()


async def test_a_prompt_is_asked_for_once_for_each_who_asks(host: RunningHost) -> None:
    """It may have side effects. The first is asked for when the session is made, to know when its set-up is done."""
    async with host.client() as client:
        session = await client.create()
        assert json.loads((await session.call("state")).text)["prompts"] == 1
        for number in (1, 2, 3):
            assert (await session.get("/any/prompt"))[1][0]["text"] == f"Prompt {number}."
        assert json.loads((await session.call("state")).text)["prompts"] == 3
        await session.delete()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_leads_nowhere(host: RunningHost, status: int) -> None:
    with closing(Trap()) as trap:
        async with host.client() as client:
            session = await client.create({"to": trap.url, "status": status})
            reply = await session.call("misbehave", what="redirect", to=trap.url, status=status)
            assert reply.event == "error"
            assert str(status) in reply.data
            await session.delete()
        assert not trap.was_visited()


async def test_a_call_runs_once_whatever_becomes_of_connections(host: RunningHost) -> None:
    """The client goes away in the middle, comes back twice with the call's id, and asks another session for it."""
    async with host.client() as client:
        session, other = await client.create(), await client.create()
        async with session.calling("sleep", seconds=1.5) as stream:
            call_id = stream.call_id
        replies = await asyncio.gather(*(session.call("sleep", call_id=call_id, seconds=9) for _ in range(2)))
        assert [reply.text for reply in replies] == ["1", "1"]
        assert (await session.call("sleep", call_id=call_id, seconds=9)).text == "1"
        foreign = await other.call("sleep", call_id=call_id, seconds=9)
        assert (foreign.event, foreign.data) == ("error", "unknown task_id")
        named = await session.call("count", call_id="trace-1")
        assert (named.call_id, named.text) == ("trace-1", "2")
        assert (await session.call("count", call_id="trace-1")).text == "2"
        assert json.loads((await session.call("state")).text)["calls"] == 3
        for each in (session, other):
            await each.delete()
