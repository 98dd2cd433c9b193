"""What containers use, on made-up cgroup trees of every kind that engines make."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from host.cgroups import Cgroups, of_stats
from host.engine import LABEL_IMAGE, ContainerRef
from host.usage import UsageWatch

ID, OTHER = "a" * 64, "b" * 64
MIB = 2**20


class Tree:
    """A cgroup file system in a folder, version 1 or 2, and the ``/proc`` that goes with it."""

    def __init__(self, path: Path, version: int) -> None:
        self.version = version
        self.root, self.proc = path / "cgroup", path / "proc"
        self.root.mkdir()
        self.proc.mkdir()
        if version == 2:
            (self.root / "cgroup.controllers").write_text("cpu memory\n")

    def put(self, place: str, *, cpu_s: float = 1.5, memory: int = 9 * MIB, inactive: int = MIB) -> None:
        """Make a container's cgroup, or change it."""
        if self.version == 2:
            self._write(place, "memory.current", f"{memory}\n")
            self._write(place, "memory.stat", f"anon 7\nfile 3\ninactive_file {inactive}\nactive_file 1\n")
            self._write(place, "cpu.stat", f"usage_usec {round(cpu_s * 1e6)}\nuser_usec 1\n")
        else:
            self._write(f"memory/{place}", "memory.usage_in_bytes", f"{memory}\n")
            stat = f"cache 1\ninactive_file 0\nhierarchical_memory_limit 5\ntotal_inactive_file {inactive}\n"
            self._write(f"memory/{place}", "memory.stat", stat)
            self._write(f"cpuacct/{place}", "cpuacct.usage", f"{round(cpu_s * 1e9)}\n")

    def remove(self, place: str) -> None:
        for path in self.root.rglob(f"{place.rpartition('/')[2]}/*"):
            path.unlink()

    def process(self, pid: int, place: str) -> None:
        (self.proc / str(pid)).mkdir()
        lines = (
            f"0::/{place}\n" if self.version == 2 else f"9:name=systemd:/\n4:cpu,cpuacct:/{place}\n3:memory:/{place}\n"
        )
        (self.proc / str(pid) / "cgroup").write_text(lines)

    def _write(self, place: str, name: str, text: str) -> None:
        (self.root / place).mkdir(parents=True, exist_ok=True)
        (self.root / place / name).write_text(text)

    def cgroups(self) -> Cgroups:
        return Cgroups(self.root, self.proc)


@pytest.fixture(params=[1, 2])
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Tree:
    return Tree(tmp_path, request.param)


@pytest.mark.parametrize("place", ["docker/{}", "system.slice/docker-{}.scope"])
def test_both_drivers(tree: Tree, place: str) -> None:
    tree.put(place.format(ID))
    cgroups = tree.cgroups()
    sample = cgroups.read(ID)
    assert sample is not None and (sample.cpu_s, sample.memory_bytes) == (1.5, 8 * MIB)
    assert cgroups.read(OTHER) is None
    tree.remove(place.format(ID))
    assert cgroups.read(ID) is None


@pytest.mark.parametrize("inside", ["", "/init"])
def test_another_place_is_learned_from_one_container_for_all(tree: Tree, inside: str) -> None:
    for container in (ID, OTHER):
        tree.put(f"machine.slice/ours/docker-{container}.scope")
    cgroups = tree.cgroups()
    assert cgroups.read(ID) is None
    tree.process(7, f"machine.slice/ours/docker-{ID}.scope{inside}")
    assert not cgroups.learn(OTHER, [7, 8]), "that process is another container's"
    assert cgroups.learn(ID, [6, 7])
    assert cgroups.read(ID) is not None and cgroups.read(OTHER) is not None


def test_what_is_above_the_own_namespace_is_not_seen(tree: Tree) -> None:
    tree.process(7, f"../../docker/{ID}")
    assert not tree.cgroups().learn(ID, [7])


STATS = {"memory_stats": {"usage": 5, "stats": {"inactive_file": 2}}, "cpu_stats": {"cpu_usage": {"total_usage": 2e9}}}


@pytest.mark.parametrize("stats", [{}, {"memory_stats": {}}, {**STATS, "cpu_stats": {"cpu_usage": None}}])
def test_the_engines_answer_for_one_that_does_not_run(stats: dict[str, Any]) -> None:
    assert of_stats(stats) is None


class Engine:
    """Lists ``ids`` by name, and answers for those that are not ``gone`` since."""

    confines = True

    def __init__(self, **ids: str) -> None:
        self.ids = ids
        self.pids: list[int] = []
        self.gone: set[str] = set()
        self.listed = self.asked = 0

    async def list_ours(self, server_id: str) -> list[ContainerRef]:
        self.listed += 1
        labels = {LABEL_IMAGE: "tag"}
        return [ContainerRef(id_, name, labels, running=True) for name, id_ in self.ids.items()]

    async def processes(self, name: str) -> list[int]:
        return self.pids

    async def stats(self, name: str) -> Mapping[str, Any] | None:
        self.asked += 1
        return None if name in self.gone else STATS


def watch_of(engine: Engine, tree: Tree) -> UsageWatch:
    return UsageWatch(engine, "server", lambda: engine.ids.keys(), cgroups=tree.cgroups())  # type: ignore[arg-type]


async def test_containers_that_come_and_go(tree: Tree) -> None:
    engine = Engine(one=ID)
    watch = watch_of(engine, tree)
    tree.put(f"docker/{ID}", cpu_s=100)
    await watch.look()
    assert watch.snapshot()["one"].memory_bytes == 8 * MIB and watch.snapshot()["one"].cpu == 0
    assert watch.cpu_seconds() == {"tag": 0}, "what it used before this host is nobody's"
    engine.ids["two"] = OTHER
    tree.put(f"docker/{ID}", cpu_s=103)
    tree.put(f"docker/{OTHER}", cpu_s=4, memory=3 * MIB)
    await watch.look()
    assert watch.snapshot()["one"].cpu > 0
    assert watch.cpu_seconds() == {"tag": 7}
    assert watch.by_image(lambda used: used.memory_bytes, sum) == {"tag": 10 * MIB}
    assert watch.by_image(lambda used: used.memory_bytes, max) == {"tag": 8 * MIB}
    await watch.look()
    assert engine.listed == 2, "nobody new"
    del engine.ids["one"]
    tree.remove(f"docker/{ID}")
    await watch.look()
    assert set(watch.snapshot()) == {"two"}
    assert watch.cpu_seconds() == {"tag": 7}
    assert engine.asked == 0


async def test_one_that_ends_just_now_decides_nothing(tree: Tree) -> None:
    engine = Engine(one=ID)
    engine.gone.add("one")
    watch = watch_of(engine, tree)
    await watch.look()
    assert watch.snapshot() == {} and engine.asked == 1
    engine.ids = {"two": OTHER}
    tree.put(f"docker/{OTHER}")
    await watch.look()
    assert set(watch.snapshot()) == {"two"} and engine.asked == 1


async def test_where_cgroups_cannot_be_seen_the_engine_is_asked(tree: Tree) -> None:
    engine = Engine(one=ID, two=OTHER)
    watch = watch_of(engine, tree)
    await watch.look()
    assert {name: used.memory_bytes for name, used in watch.snapshot().items()} == {"one": 3, "two": 3}
    engine.gone.add("two")
    await watch.look()
    assert set(watch.snapshot()) == {"one"}
