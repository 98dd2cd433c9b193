"""What a profile makes of a container, without one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from host.isolation import Profile, Sizes, confine, missing_memory
from host.settings import Settings

MIB = 1024**2
SIZES = Sizes(256 * MIB, 512 * MIB, inodes=250_000, pids=256, memory_bytes=2048 * MIB)


def sizes_of(tmpfs: str) -> dict[str, int]:
    options = dict(option.partition("=")[::2] for option in tmpfs.split(","))
    return {name: int(options[name]) for name in ("size", "nr_inodes")}


@pytest.mark.parametrize("profile", list(Profile))
def test_everything_in_memory_is_bounded_and_counted(profile: Profile) -> None:
    confinement = confine(profile, SIZES)
    mounts = [sizes_of(options) for options in confinement.tmpfs.values()]
    assert confinement.file_bytes == sum(mount["size"] + 2048 * mount["nr_inodes"] for mount in mounts)
    assert "/dev/shm" in confinement.tmpfs


def test_under_strict_the_places_share_the_files() -> None:
    confinement = confine(Profile.STRICT, SIZES)
    places = ("/tmp", "/var/tmp", "/workspace", "/home/agent")
    assert sum(sizes_of(confinement.tmpfs[place])["nr_inodes"] for place in places) <= 2048 * MIB // (16 * 1024)
    fewer = confine(Profile.STRICT, replace(SIZES, inodes=1000))
    assert sum(sizes_of(fewer.tmpfs[place])["nr_inodes"] for place in places) == 1000


@pytest.mark.parametrize("profile", list(Profile))
def test_by_default_files_leave_memory_for_processes(profile: Profile) -> None:
    settings = Settings(image=("x",))
    sizes = Sizes(
        settings.tmp_size, settings.workspace_size, settings.inodes, settings.pids, memory_bytes=settings.memory
    )
    assert missing_memory(confine(profile, sizes), settings.memory) == 0


def test_how_much_memory_is_missing() -> None:
    sizes = replace(SIZES, tmp_bytes=4096 * MIB)
    confinement = confine(Profile.STANDARD, sizes)
    missing = missing_memory(confinement, sizes.memory_bytes)
    assert missing == confinement.file_bytes + 128 * MIB - 2048 * MIB > 0
    assert missing_memory(confinement, sizes.memory_bytes + missing) == 0


def test_where_kernel_settings_are_the_containers_own() -> None:
    assert confine(Profile.STANDARD, SIZES).sysctls["kernel.shm_rmid_forced"] == "1"
    assert confine(Profile.STRICT, SIZES).sysctls
    assert confine(Profile.STANDARD, SIZES, remapped=True).sysctls == {}
    assert confine(Profile.GVISOR, SIZES).sysctls == {}
