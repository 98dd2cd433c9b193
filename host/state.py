"""The state directory: who this host is, that it is the only one there, and where its sockets live.

server-id        written once; the label on every container this host makes
key              32 random bytes; a sandbox's token is derived from it, so no list of tokens is kept
lock             held while a host runs
address          where that host listens, from when it does
s/<sandbox>/     one sandbox's socket directory, mounted read-only into its container
sessions/        <sandbox>: which session a sandbox is for; its age says since when that is idle
servers/         <sandbox>: what is known of the session in an image's own server (``server_note.py``)
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from host.errors import StartupError

MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` holds 108 bytes with the final NUL (unix(7))."""

SOCKET_NAME = "host.sock"
TOKEN_NAME = "token"
_SANDBOX_ID_BYTES = 6
ADDRESS_NAME, KEY_NAME = "address", "key"
_SOCKETS, _SESSIONS, _SERVERS = "s", "sessions", "servers"
_LOCK_TRIES, _LOCK_PAUSE_S = 5, 0.05
"""Whoever looks whether a host is there holds the lock for a moment (``state_view.py``)."""


@dataclass(frozen=True)
class Assignment:
    """Which session a sandbox is for. ``created_at`` is in seconds since the epoch."""

    session: str
    environment: str
    created_at: float


class StateDir:
    """An open state directory; ``close()`` gives the lock back."""

    def __init__(self, path: Path, lock_fd: int, server_id: str, key: bytes) -> None:
        self.path = path
        self.server_id = server_id
        self._lock_fd = lock_fd
        self._key = key

    @classmethod
    def open(cls, path: Path) -> Self:
        """Make or take over the directory.

        Raises:
            StartupError: it can't be made, is too long for a socket path, or another host runs in it.
        """
        path = path.expanduser().absolute()
        if (size := longest_socket_path(path)) > MAX_SOCKET_PATH_BYTES:
            room = MAX_SOCKET_PATH_BYTES - (size - len(os.fsencode(path)))
            raise StartupError(
                f"the state directory {path} is too long for a unix socket path: it may have {room} bytes; "
                "give a shorter one with --state-dir"
            )
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock_fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as exc:
            raise StartupError(f"the state directory {path} can't be used: {exc.strerror}") from exc
        try:
            _lock(lock_fd, path)
            (path / ADDRESS_NAME).unlink(missing_ok=True)
            for name in (_SOCKETS, _SESSIONS, _SERVERS):
                (path / name).mkdir(mode=0o700, exist_ok=True)
            server_id = _read_or_make(path / "server-id", lambda: secrets.token_hex(8).encode()).decode()
            key = _read_or_make(path / KEY_NAME, lambda: secrets.token_bytes(32))
        except OSError as exc:
            os.close(lock_fd)
            raise StartupError(f"the state directory {path} can't be used: {exc.strerror}") from exc
        except BaseException:
            os.close(lock_fd)
            raise
        return cls(path, lock_fd, server_id, key)

    def close(self) -> None:
        """Let another host have the directory."""
        os.close(self._lock_fd)

    def new_sandbox_id(self) -> str:
        """Return an id that no sandbox of this host has had."""
        return secrets.token_hex(_SANDBOX_ID_BYTES)

    def sandbox_dir(self, sandbox_id: str) -> Path:
        """Return where a sandbox's socket directory is (or will be)."""
        return self.path / _SOCKETS / sandbox_id

    def token(self, sandbox_id: str) -> str:
        """Return what a sandbox's runtime must say first. A function of key and id: it survives this process."""
        return hmac.new(self._key, sandbox_id.encode(), hashlib.sha256).hexdigest()

    @property
    def operator_key(self) -> str:
        """A key to this host's API, for who can read its state directory (``auth.py``)."""
        return operator_key(self._key)

    def announce(self, url: str) -> None:
        """Write down where this host listens, for commands on the same machine.

        Raises:
            OSError: it can't be written.
        """
        (self.path / ADDRESS_NAME).write_text(url)

    def sandbox_ids(self) -> set[str]:
        """Return the ids of the sandboxes of which something is here."""
        # None, not an error, if somebody has removed it all.
        return {path.name for part in (_SOCKETS, _SESSIONS, _SERVERS) for path in (self.path / part).glob("*")}

    def assign(self, sandbox_id: str, assignment: Assignment) -> None:
        """Note which session a sandbox is for, before anything is asked of it: labels can't be changed any more.

        Beside its directory, not in it: a session's id is nothing for the container to know.

        Raises:
            OSError: it can't be written.
        """
        path = self._assignment(sandbox_id)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(json.dumps(asdict(assignment)).encode())

    def assignment(self, sandbox_id: str) -> Assignment | None:
        """Return which session a sandbox is for; None if it is for none, or the note was never finished."""
        try:
            return Assignment(**json.loads(self._assignment(sandbox_id).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None

    def touch(self, sandbox_id: str) -> None:
        """Take note that the session was in use just now: a host that comes after this one goes on with its idle clock."""
        with contextlib.suppress(OSError):
            os.utime(self._assignment(sandbox_id))

    def last_touched(self, sandbox_id: str) -> float:
        """Return when (seconds since the epoch) a sandbox's session was last in use.

        Raises:
            FileNotFoundError: it is for none.
        """
        return self._assignment(sandbox_id).stat().st_mtime

    def forget(self, sandbox_id: str) -> None:
        """Remove all that is here of a sandbox; fine if it is gone already. What can't be removed stays in ``sandbox_ids``."""
        shutil.rmtree(self.sandbox_dir(sandbox_id), ignore_errors=True)
        for path in (self._assignment(sandbox_id), self.server_note(sandbox_id)):
            with contextlib.suppress(OSError):
                path.unlink()

    def server_note(self, sandbox_id: str) -> Path:
        """Return where the note on a sandbox's session is (or will be), where the image has a server of its own."""
        return self.path / _SERVERS / sandbox_id

    def _assignment(self, sandbox_id: str) -> Path:
        return self.path / _SESSIONS / sandbox_id


def longest_socket_path(path: Path) -> int:
    """Return how long (bytes) the path of a sandbox's socket in this state directory is."""
    return len(os.fsencode(path / _SOCKETS / ("0" * 2 * _SANDBOX_ID_BYTES) / SOCKET_NAME))


def operator_key(key: bytes) -> str:
    """Return the operator's key that follows from a state directory's own; no sandbox's token is ever the same."""
    return hmac.new(key, b"operator", hashlib.sha256).hexdigest()


def _lock(fd: int, path: Path) -> None:
    for _ in range(_LOCK_TRIES):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        time.sleep(_LOCK_PAUSE_S)
    else:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        raise StartupError(
            f"another ors-host (pid {holder}) runs with the state directory {path}; give this one its own with --state-dir"
        )
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)


def _read_or_make(path: Path, make: Callable[[], bytes]) -> bytes:
    try:
        content = path.read_bytes()
        if content:
            return content
    except FileNotFoundError:
        pass
    content = make()
    temporary = path.with_name(path.name + ".new")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)  # whole or not at all, so that a crash here can't leave half an identity
    return content
