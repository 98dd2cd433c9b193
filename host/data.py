"""Folders of this machine that environments read as data, at ``/orwd_data``: read-only, alike in all containers of an image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from host.errors import StartupError

DATA_DIR = "/opt/orwd/data"
"""Where a folder is mounted: behind a directory that the agent can't pass, as the answers may be in it. In the base image
``/orwd_data``, where environments look, is a link to it."""


def data_folders(values: Sequence[str], tags: Sequence[str], *, owner: tuple[int, int]) -> Mapping[str, Path]:
    """Return the folder of each image that has one.

    Args:
        values: ``DIR`` for all images, ``TAG=DIR`` for one, which counts more.
        tags: the images that are served.
        owner: the (uid, gid) on this machine of a container's root, which may read no more than anybody of that id.

    Raises:
        StartupError: there is no such folder, it can't be read in a container, or one image has two.
    """
    for_all: list[Path] = []
    for_one: dict[str, Path] = {}
    for value in values:
        tag, equals, path = value.partition("=")
        if not equals or os.path.isdir(value):
            for_all.append(_checked(value, owner))
        elif tag not in tags:
            raise StartupError(f"--data {value}: no image {tag!r} is served, and there is no folder of that name")
        elif tag in for_one:
            raise StartupError(f"--data is given twice for image {tag!r}")
        else:
            for_one[tag] = _checked(path, owner)
    if len(for_all) > 1:
        raise StartupError(f"--data is given twice for all images: {for_all[0]} and {for_all[1]}")
    return {**dict.fromkeys(tags if for_all else (), *for_all), **for_one}


def _checked(value: str, owner: tuple[int, int]) -> Path:
    path = Path(value).expanduser().resolve()
    if not path.is_dir():
        raise StartupError(f"--data: {path} is {'not a folder' if path.exists() else 'not there'}")
    status = path.stat()
    uid, gid = owner
    needed = 0o500 if status.st_uid == uid else 0o050 if status.st_gid == gid else 0o005
    if status.st_mode & needed != needed:
        raise StartupError(f"--data: {path} can't be read in a container; allow it: chmod -R a+rX {path}")
    return path
