"""Where paths are on the engine's machine, seen from a process beside it and from one in a container of the engine's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from host.errors import StartupError
from host.placement import Placement, own_container_ids

ID = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"


def placement(*mounts: tuple[str, str, str], pid_mode: str = "") -> Placement:
    listed: list[dict[str, Any]] = [
        {"Type": kind, "Source": source, "Destination": destination} for kind, source, destination in mounts
    ]
    return Placement.in_container({"Mounts": listed, "HostConfig": {"PidMode": pid_mode}})


def test_beside_the_engine_paths_are_what_they_are() -> None:
    assert Placement().on_engine(Path("/var/lib/ors-host")) == Path("/var/lib/ors-host")
    assert Placement().shares_processes


def test_what_is_mounted_is_where_it_comes_from() -> None:
    inside = placement(
        ("bind", "/srv/state", "/var/lib/ors-host"), ("volume", "/docker/volumes/d/_data", "/var/lib/ors-host/deep")
    )
    assert inside.on_engine(Path("/var/lib/ors-host/s/1")) == Path("/srv/state/s/1")
    assert inside.on_engine(Path("/var/lib/ors-host/deep/2")) == Path("/docker/volumes/d/_data/2")
    assert inside.here(Path("/srv/state/s/1")) == Path("/var/lib/ors-host/s/1")
    assert inside.here(Path("/srv/else")) == Path("/srv/else")
    assert not inside.shares_processes
    assert placement(pid_mode="host").shares_processes


def test_what_is_not_mounted_is_nowhere() -> None:
    inside = placement(("bind", "/var/run/docker.sock", "/var/run/docker.sock"), ("tmpfs", "", "/tmp"))
    assert inside.on_engine(Path("/var/lib/ors-host")) is None
    assert inside.on_engine(Path("/tmp/state")) is None
    # Not /data, although the names begin alike.
    assert placement(("bind", "/data", "/data")).on_engine(Path("/database")) is None


def test_links_are_followed_first(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "real")
    inside = placement(("bind", "/srv", str(tmp_path.resolve() / "real")))
    assert inside.on_engine(tmp_path / "link" / "x") == Path("/srv/x")


def test_what_is_nowhere_is_refused_with_advice() -> None:
    with pytest.raises(StartupError, match=r"the data folder /data is only in there.*--volume /data:/data.*--data"):
        placement().check(Path("/data"), "the data folder", "--data")


@pytest.mark.parametrize(
    ("line", "found"),
    [
        (f"713 692 8:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/sda1 rw", [ID]),
        (
            f"713 692 0:25 /containers/overlay-containers/{ID}/userdata/resolv.conf /etc/resolv.conf rw - tmpfs t rw",
            [ID],
        ),
        (f"713 692 8:1 /var/lib/docker/overlay2/{ID}/merged / rw - overlay overlay rw", []),
        ("21 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw", []),
    ],
)
def test_a_containers_own_id(tmp_path: Path, line: str, found: list[str]) -> None:
    (tmp_path / "mountinfo").write_text(f"{line}\n{line}\n")
    assert list(own_container_ids(tmp_path / "mountinfo")) == found


def test_where_the_kernel_has_no_such_list(tmp_path: Path) -> None:
    assert list(own_container_ids(tmp_path / "none")) == []
