"""Folders that environments read as data: which image gets which, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.data import data_folders
from host.errors import StartupError

ROOT = (0, 0)
NOBODY = (61_234, 61_234)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for name in ("a", "b", "x=y"):
        (tmp_path / name).mkdir(mode=0o755)
    (tmp_path / "file").touch()
    return tmp_path


def test_one_for_all_and_one_for_one(folders: Path) -> None:
    a, b = folders / "a", folders / "b"
    assert data_folders([], ["one", "two"], owner=ROOT) == {}
    assert data_folders([str(a)], ["one", "two"], owner=ROOT) == {"one": a, "two": a}
    assert data_folders([f"two={b}"], ["one", "two"], owner=ROOT) == {"two": b}
    assert data_folders([f"two={b}", str(a)], ["one", "two"], owner=ROOT) == {"one": a, "two": b}


def test_an_equals_sign_in_a_folders_name(folders: Path) -> None:
    assert data_folders([f"{folders}/x=y"], ["one"], owner=ROOT) == {"one": folders / "x=y"}
    assert data_folders([f"one={folders}/x=y"], ["one"], owner=ROOT) == {"one": folders / "x=y"}


def test_a_link_and_a_relative_path_are_resolved(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folders / "link").symlink_to("a")
    monkeypatch.chdir(folders)
    assert data_folders(["link"], ["one"], owner=ROOT) == {"one": folders / "a"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["{0}/missing"], "/missing is not there"),
        (["{0}/file"], "/file is not a folder"),
        (["one={0}/missing"], "/missing is not there"),
        (["three={0}/a"], "no image 'three' is served"),
        (["{0}/a", "{0}/b"], "twice for all images"),
        (["one={0}/a", "one={0}/b"], "twice for image 'one'"),
    ],
)
def test_what_is_refused(folders: Path, values: list[str], message: str) -> None:
    with pytest.raises(StartupError, match=message):
        data_folders([value.format(folders) for value in values], ["one", "two"], owner=ROOT)


def test_what_a_container_could_not_read(folders: Path) -> None:
    private = folders / "a"
    private.chmod(0o700)
    owner = (private.stat().st_uid, private.stat().st_gid)
    assert data_folders([str(private)], ["one"], owner=owner) == {"one": private}
    with pytest.raises(StartupError, match=r"can't be read in a container; allow it: chmod -R a\+rX"):
        data_folders([str(private)], ["one"], owner=NOBODY)
