"""Profiles: agents can go on working under each; what each takes away is first shown to be there without it."""

from __future__ import annotations

import asyncio
import json
import platform
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import ors.client
import pytest

from host.isolation import GVISOR, Profile
from tests.docker.conftest import EXAMPLES
from tests.docker.harness import Client, RunningHost, running_host

sys.path.insert(0, str(EXAMPLES))

from episodes import EPISODES, play

GOOD_EPISODES = {episode.environment: episode for episode in EPISODES if episode.reward == 1}

SYSCALLS = (Path(__file__).parent / "syscalls.py").read_text()
FORBIDDEN_EVERYWHERE = {
    *("process_vm_readv", "kcmp", "pidfd_getfd", "unshare", "clone(NEWUSER)"),
    *("mount", "bpf", "keyctl", "userfaultfd", "init_module", "open_by_handle_at"),
}
ALLOWED_EVERYWHERE = {"NETLINK_ROUTE", "AF_UNIX", "AF_INET", "AF_INET6"}

WORK = {
    "bash": ("echo $((6 * 7)) | tee answer; cat <(echo sub) | sort", "42\nsub"),
    "files": (
        "mkdir -p a/b && echo hi > a/b/c && mv a/b/c a/d && cp -a a e && rm -r a && cat e/d && mkfifo pipe",
        "hi",
    ),
    "python": (
        "python3 - <<'P'\nimport threading, subprocess, multiprocessing, tempfile, sqlite3\n"
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()\n"
        "print(subprocess.run(['true']).returncode, multiprocessing.Pool(2).map(abs, [-1]), flush=True)\n"
        "d = sqlite3.connect('db'); d.execute('create table t (x)'); d.commit(); print(tempfile.mkdtemp()[:5])\nP",
        "thread\n0 [1]\n/tmp/",
    ),
    "gcc": (
        "printf '#include <stdio.h>\\nint main(){puts(\"compiled\");}' > m.c"
        " && printf 'm: m.c\\n\\tgcc -O2 -o m m.c\\n' > Makefile && make -s && ./m",
        "compiled",
    ),
    "git": (
        "git init -q r && cd r && echo 1 > f && git add f && git -c user.name=a -c user.email=a@b commit -qm first"
        " && git clone -q . ../r2 && git -C ../r2 log --format=%s",
        "first",
    ),
    "loopback": (
        "(cd /tmp && python3 -m http.server 8123 >/dev/null 2>&1 & echo $! > pid) ; "
        "for i in $(seq 100); do curl -sf http://127.0.0.1:8123/ >/dev/null && echo served && break; done; kill $(cat pid)",
        "served",
    ),
}
"""A command line and the output that ends it well."""


@pytest.fixture
async def client(profile_host: tuple[Profile, RunningHost]) -> AsyncIterator[Client]:
    async with profile_host[1].client() as client:
        yield client


async def test_every_example(profile_host: tuple[Profile, RunningHost]) -> None:
    profile, host = profile_host
    environments = ors.client.AsyncORS(base_url=host.url).environments
    played = [episode for name, episode in GOOD_EPISODES.items() if profile is Profile.STANDARD or name != "nodeenv"]
    try:
        outcomes = await asyncio.gather(*(play(environments.get(episode.environment), episode) for episode in played))
    finally:
        for session in environments._clients.values():
            await session.close()
    assert [outcome.reward for outcome in outcomes] == [1.0] * len(played)


async def test_an_agent_can_work(client: Client) -> None:
    session = await client.create()
    for name, (command, expected) in WORK.items():
        output = await session.bash(f"mkdir {name} && cd {name} && {{ {command}\n}} 2>&1")
        assert output.strip().endswith(expected), (name, output)
    owner = await session.bash(
        "python3 -c 'import os; s = os.stat(\"/workspace\"); print(s.st_uid, s.st_gid, oct(s.st_mode))'"
    )
    assert owner.strip() == "10000 10000 0o40755"
    await session.delete()


async def test_what_the_container_is(profile_host: tuple[Profile, RunningHost], client: Client) -> None:
    profile, host = profile_host
    session = await client.create()
    options = host.inspect(session.sid)["HostConfig"]
    assert options["ReadonlyRootfs"] is (profile is Profile.STRICT)
    assert (options["Runtime"] == GVISOR) is (profile is Profile.GVISOR)
    kernel = await session.bash("uname -r")
    assert (platform.release() in kernel) is (profile is not Profile.GVISOR)
    await session.delete()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempts are by x86-64 call numbers")
async def test_system_calls(profile_host: tuple[Profile, RunningHost], client: Client) -> None:
    """Under standard most of the attempts get through to the kernel, so under strict it is the profile that stops them."""
    profile, _ = profile_host
    session = await client.create()
    results = json.loads(await session.bash(f"python3 - <<'PYTHON'\n{SYSCALLS}\nPYTHON"))
    await session.delete()
    assert {results[name] for name in ALLOWED_EVERYWHERE} == {"ok"}, results
    if profile is Profile.GVISOR:
        return  # its own kernel answers: whatever it grants is not the machine's
    assert {results[name] for name in FORBIDDEN_EVERYWHERE} == {"EPERM"}, results
    ours = {name: result for name, result in results.items() if name not in FORBIDDEN_EVERYWHERE | ALLOWED_EVERYWHERE}
    stopped = {name for name, result in ours.items() if result in ("EPERM", "signal 31")}
    assert len(ours) == 9
    assert stopped == (set(ours) if profile is Profile.STRICT else set()), results


async def test_the_runtimes_socket_is_closed_to_the_agent(client: Client) -> None:
    """Under gVisor everybody in the container is root to the host: the mode of the socket must hold inside."""
    session = await client.create()
    program = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/ors/host.sock'); print('connected')"
    assert "PermissionError" in await session.bash(f'python3 -c "{program}" 2>&1')
    assert "Permission denied" in await session.bash("cat /run/ors/token 2>&1")
    assert (await session.call("count")).text == "1"
    await session.delete()


async def test_where_an_agent_can_write(profile_host: tuple[Profile, RunningHost], client: Client) -> None:
    profile, _ = profile_host
    session = await client.create()
    attempts = "for f in /var/tmp/x /tmp/x /workspace/x /home/agent/x /dev/shm/x; do echo 1 > $f && stat -f -c '%n %T' $f; done"
    found = dict(line.split() for line in (await session.bash(attempts)).splitlines())
    assert len(found) == 5, found
    on_disk = {name for name, filesystem in found.items() if filesystem not in ("tmpfs", "ramfs")}
    if profile is Profile.STRICT:
        assert on_disk == set()
        assert "/" not in await session.bash("find / -xdev -fstype overlay -writable -not -type l 2>/dev/null")
    elif profile is Profile.STANDARD:
        assert on_disk == {"/var/tmp/x", "/workspace/x", "/home/agent/x"}
        assert "/workspace" in await session.bash("find / -xdev -fstype overlay -writable -not -type l 2>/dev/null")
    await session.delete()


@pytest.mark.parametrize("place", ["/workspace", "/home/agent", "/tmp", "/var/tmp"])
async def test_strict_fills_no_more_than_its_size(
    profile_host: tuple[Profile, RunningHost], client: Client, place: str
) -> None:
    profile, _ = profile_host
    if profile is not Profile.STRICT and place != "/tmp":
        return  # what holds there is tests/isolation/test_disk.py
    session = await client.create()
    output = await session.bash(
        f"dd if=/dev/zero of={place}/big bs=1M count=100 2>&1; stat -c %s {place}/big; rm {place}/big"
    )
    assert "No space left on device" in output, output
    output = await session.bash(
        f'cd {place} && python3 -c \'for n in range(6000): open(f"f{{n}}", "x")\' 2>&1 | tail -n 1; rm -rf f*'
    )
    if profile is not Profile.GVISOR:  # whose tmpfs counts no inodes
        assert "No space left on device" in output, output
    assert await session.bash("echo alive") == "alive\n"
    await session.delete()


def test_gvisor_is_refused_where_the_engine_lacks_it() -> None:
    from host.errors import StartupError
    from host.isolation import check_runtimes

    with pytest.raises(
        StartupError, match=r"needs the OCI runtime 'runsc', and the Docker engine has only io\.x, runc;"
    ):
        check_runtimes(Profile.GVISOR, ["runc", "io.x"])
    check_runtimes(Profile.GVISOR, ["runsc"])
    check_runtimes(Profile.STRICT, ["runc"])


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(AssertionError, match="exit code 2"), running_host("x", isolation="none"):
        pass
