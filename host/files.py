"""How much is in a directory tree that a container writes to. Runs in a thread, as root, on files of somebody hostile.

Nothing is followed: every step is taken from an open directory, and what turns out to be a link, or not there any more, is
passed over. The work ends as soon as there is more than was asked about.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_DEPTH = 200
"""Directories in one another; each is an open descriptor while it is looked at. Real trees have a tenth of it."""


class TooDeep(Exception):
    """Directories are nested so deep that they can't be measured."""


@dataclass(frozen=True)
class Usage:
    """``bytes_`` as allocated on the disk, ``inodes``: files, directories and the rest. Also used as a limit."""

    bytes_: int
    inodes: int

    def exceeds(self, limit: Usage) -> bool:
        """Tell whether there is more of either than ``limit`` says."""
        return self.bytes_ > limit.bytes_ or self.inodes > limit.inodes


def usage_of(roots: Iterable[Path], limit: Usage) -> Usage:
    """Return what is in these trees together, or as much of it as is more than ``limit``. One that is gone counts nothing.

    Raises:
        TooDeep: see there.
        OSError: a tree can't be read.
    """
    total = Usage(0, 0)
    for root in roots:
        left = Usage(limit.bytes_ - total.bytes_, limit.inodes - total.inodes)
        found = _usage_of(root, left)
        total = Usage(total.bytes_ + found.bytes_, total.inodes + found.inodes)
        if total.exceeds(limit):
            break
    return total


def _usage_of(root: Path, limit: Usage) -> Usage:
    allocated = inodes = 0
    linked: set[int] = set()
    open_directories: list[tuple[int, list[str]]] = []
    try:
        name, parent = str(root), None
        while True:
            try:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            except (FileNotFoundError, NotADirectoryError):
                fd = -1
            if fd >= 0:
                below: list[str] = []
                open_directories.append((fd, below))
                if len(open_directories) > MAX_DEPTH:
                    raise TooDeep
                with os.scandir(fd) as entries:
                    for entry in entries:
                        try:
                            found = entry.stat(follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        if stat.S_ISDIR(found.st_mode):
                            below.append(entry.name)
                        elif found.st_nlink > 1:
                            if found.st_ino in linked:
                                continue
                            linked.add(found.st_ino)
                        allocated += found.st_blocks * 512
                        inodes += 1
                        if allocated > limit.bytes_ or inodes > limit.inodes:
                            return Usage(allocated, inodes)
            while open_directories and not open_directories[-1][1]:
                os.close(open_directories.pop()[0])
            if not open_directories:
                return Usage(allocated, inodes)
            parent, names = open_directories[-1]
            name = names.pop()
    finally:
        for fd, _ in open_directories:
            os.close(fd)


def deleted_bytes(pids: Iterable[int]) -> int:
    """Return what is allocated to files on these processes' root that have no name any more, but are open."""
    seen: dict[int, int] = {}
    for pid in pids:
        try:
            device = os.stat(f"/proc/{pid}/root").st_dev
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it has ended
            continue
        for name in names:
            try:
                found = os.stat(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
            if stat.S_ISREG(found.st_mode) and found.st_nlink == 0 and found.st_dev == device:
                seen[found.st_ino] = found.st_blocks * 512
    return sum(seen.values())
