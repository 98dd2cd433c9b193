"""A state directory seen from outside: is there a host in it, which sessions has it, how is it reached. Nothing is changed."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import Self

from host.state import ADDRESS_NAME, KEY_NAME, Assignment, StateDir, operator_key


class Life(Enum):
    """Whether a host lives in a state directory."""

    ALIVE = auto()
    DEAD = auto()
    UNKNOWN = auto()
    """It is not here, or not ours to look into."""


@dataclass(frozen=True)
class StateView:
    """What can be seen of one state directory. ``server_id`` is "" if no host was ever in it, or it can't be read."""

    path: Path
    server_id: str
    life: Life
    pid: int | None = None
    problem: str | None = None
    """What kept it from being read."""

    @classmethod
    def of(cls, path: Path) -> Self:
        """Look at a directory, which need not be there."""
        path = path.expanduser().absolute()
        try:
            server_id = (path / "server-id").read_text()
            life, pid = _holder(path / "lock")
        except OSError as exc:
            return cls(path, "", Life.UNKNOWN, problem=exc.strerror)
        return cls(path, server_id, life, pid)

    def assignment(self, sandbox_id: str) -> Assignment | None:
        """Return which session a sandbox is for; None if it is for none."""
        return self._directory.assignment(sandbox_id)

    def last_touched(self, sandbox_id: str) -> float | None:
        """Return when (seconds since the epoch) its session was last in use; None if it is for none."""
        try:
            return self._directory.last_touched(sandbox_id)
        except OSError:
            return None

    def address(self) -> tuple[str, str] | None:
        """Return the URL that its living host listens on, from this machine, and the operator's key to it.

        None if it doesn't serve yet. Raises OSError if the directory is not ours to read.
        """
        try:
            url = (self.path / ADDRESS_NAME).read_text()
        except FileNotFoundError:
            return None
        for everywhere, loopback in (("//0.0.0.0:", "//127.0.0.1:"), ("//[::]:", "//[::1]:")):
            url = url.replace(everywhere, loopback)
        return url, operator_key((self.path / KEY_NAME).read_bytes())

    def sandbox_ids(self) -> set[str]:
        """Return the ids of the sandboxes of which something is here."""
        return self._directory.sandbox_ids()

    @property
    def _directory(self) -> StateDir:
        return StateDir(self.path, -1, self.server_id, b"")


def _holder(lock: Path) -> tuple[Life, int | None]:
    fd = os.open(lock, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for a moment: a host that starts just now tries again
    except BlockingIOError:
        text = os.pread(fd, 32, 0).decode(errors="replace").strip()
        return Life.ALIVE, int(text) if text.isdecimal() else None
    finally:
        os.close(fd)
    return Life.DEAD, None
