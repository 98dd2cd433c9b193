"""The disk limit: files are measured without following anything, and who fills the disk is ended before it is full."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from host.docker_engine import DockerEngine
from host.engine import EngineError
from host.files import MAX_DEPTH, TooDeep, Usage, deleted_bytes, usage_of
from tests.docker.harness import Client, RunningHost, running_host
from tests.isolation.conftest import AS_ROOT, MIB

PLENTY = Usage(2**60, 2**60)
DISK_MIB, INODES = 64, 3000


# --- Measuring --------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two directories, a file of a MiB, one with two names, a sparse one, and links to where more is."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "big").write_bytes(bytes(4 * MIB))
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "file").write_bytes(bytes(MIB))
    os.link(root / "a" / "file", root / "name")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "file-link").symlink_to(tmp_path / "outside" / "big")
    os.mkfifo(root / "fifo")
    with (root / "sparse").open("wb") as file:
        file.truncate(2**40)
    return root


def test_what_is_counted(tree: Path) -> None:
    usage = usage_of([tree], PLENTY)
    assert MIB <= usage.bytes_ < 1.5 * MIB
    assert usage.inodes == 6
    assert usage_of([tree, tree.parent / "outside"], PLENTY).inodes == 7
    assert usage_of([tree / "gone", tree / "file-link", tree / "link"], PLENTY) == Usage(0, 0)


def test_the_work_ends_with_the_limit(tree: Path) -> None:
    for number in range(100):
        (tree / f"f{number}").touch()
    assert usage_of([tree], Usage(2**60, 10)).inodes == 11
    assert usage_of([tree, tree], Usage(MIB // 2, 2**60)).bytes_ < 2 * MIB


def test_deep_trees_are_refused_and_open_no_more_than_their_share(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(MAX_DEPTH + 1):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(TooDeep):
        usage_of([tmp_path], PLENTY)
    assert len(os.listdir("/proc/self/fd")) == before
    shutil.rmtree(tmp_path / "d" / "d")
    assert usage_of([tmp_path], PLENTY).inodes == 1


def test_a_file_without_a_name_counts_while_it_is_open(tmp_path: Path) -> None:
    before = deleted_bytes([os.getpid()])
    with (tmp_path / "file").open("wb") as file, open(os.dup(file.fileno()), "wb"):
        file.write(bytes(MIB))
        file.flush()
        assert deleted_bytes([os.getpid()]) == before
        (tmp_path / "file").unlink()
        on_root = os.stat("/proc/self/root").st_dev == os.fstat(file.fileno()).st_dev
        assert deleted_bytes([os.getpid(), 2**22 + 1]) == before + MIB * on_root
    assert deleted_bytes([os.getpid()]) == before


# --- In force ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def disk_host(tools_image: str) -> Iterator[RunningHost]:
    with running_host(tools_image, disk=f"{DISK_MIB}MiB", inodes=INODES) as host:
        yield host


FILLERS = {
    "one file": "head -c 10G /dev/zero > /workspace/big",
    "many places": "for d in /workspace /home/agent /var/tmp; do head -c 40M /dev/zero > $d/part; done; sleep 60",
    "reserved": "fallocate -l 3G /workspace/big; sleep 60",
    "no name": "exec 3> /workspace/big; rm /workspace/big; head -c 1G /dev/zero >&3; sleep 60",
    "empty files": 'python3 -c \'for n in range(10**6): open(f"/workspace/{n}", "x")\'; sleep 60',
    "directories": "mkdir d && cd d; while mkdir d 2>/dev/null && cd d 2>/dev/null; do :; done; sleep 60",
}


@AS_ROOT
async def test_who_fills_the_disk_is_ended_and_nobody_else(disk_host: RunningHost) -> None:
    """All at once, while a session that stays within the limits goes on."""
    assert "measuring the containers' files" in disk_host.log or "storage driver's quota" in disk_host.log
    async with disk_host.client() as client:
        modest = await client.create()
        assert await modest.bash(f"head -c {DISK_MIB // 2}M /dev/zero > big; echo fine") == "fine\n"
        ends = await asyncio.gather(*(_fill(client, command) for command in FILLERS.values()))
        for name, end in zip(FILLERS, ends, strict=True):
            assert end.startswith("disk_full: the container"), (name, end)
        assert await modest.bash("cat big | wc -c") == f"{DISK_MIB // 2 * MIB}\n"
        await modest.delete()


async def _fill(client: Client, command: str) -> str:
    session = await client.create()
    reply = await session.call("bash", command=command, timeout_s=60)
    assert reply.event == "error", reply.data
    status, body = await session.get("/any/prompt")
    assert (status, body["reason"]) == (410, "disk_full")
    return reply.data


@AS_ROOT
async def test_without_a_limit_the_same_goes_through(tools_image: str) -> None:
    with running_host(tools_image) as host:
        async with host.client() as client:
            session = await client.create()
            size = 4 * DISK_MIB
            assert await session.bash(f"head -c {size}M /dev/zero > big; stat -c %s big") == f"{size * MIB}\n"
            await session.delete()


async def test_the_engines_own_measure(disk_host: RunningHost) -> None:
    """What is used where the containers' files can't be read."""
    async with disk_host.client() as client, DockerEngine.open() as engine:
        session = await client.create()
        await session.bash("head -c 10M /dev/zero > big")
        name = disk_host.inspect(session.sid)["Name"].lstrip("/")
        assert 10 * MIB <= (await engine.written_bytes())[name] < 12 * MIB
        assert len(await engine.processes(name)) >= 2
        await session.delete()
        assert await engine.processes(name) == []
        assert await engine.writable_dirs(name) is None


async def test_whether_the_engine_has_a_quota_is_asked_of_it(tools_image: str) -> None:
    async with DockerEngine.open() as engine:
        answer = await engine.has_quota(tools_image, {"ors-host.server": "test-quota"})
        assert await engine.list_ours("test-quota") == []
        if engine._info["Driver"] == "overlay2":
            backing = dict(engine._info["DriverStatus"]).get("Backing Filesystem")
            assert not answer or backing == "xfs"
        with pytest.raises(EngineError):
            await engine.has_quota("no-such-image:latest", {})
