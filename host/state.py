"""The state directory: who this host is, that it is the only one there, and where its sockets live.

server-id        written once; the label on every container this host makes
key              32 random bytes; a sandbox's token is derived from it, so no list of tokens is kept
lock             held while a host runs
s/<sandbox>/     one sandbox's socket directory, mounted read-only into its container
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Self

from host.errors import StartupError

MAX_SOCKET_PATH_BYTES = 107
"""``sun_path`` holds 108 bytes with the final NUL (unix(7))."""

SOCKET_NAME = "host.sock"
TOKEN_NAME = "token"
_SANDBOX_ID_BYTES = 6


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
        longest = path / "s" / ("0" * 2 * _SANDBOX_ID_BYTES) / SOCKET_NAME
        if (size := len(os.fsencode(longest))) > MAX_SOCKET_PATH_BYTES:
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
            (path / "s").mkdir(mode=0o700, exist_ok=True)
            server_id = _read_or_make(path / "server-id", lambda: secrets.token_hex(8).encode()).decode()
            key = _read_or_make(path / "key", lambda: secrets.token_bytes(32))
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
        return self.path / "s" / sandbox_id

    def token(self, sandbox_id: str) -> str:
        """Return what a sandbox's runtime must say first. A function of key and id: it survives this process."""
        return hmac.new(self._key, sandbox_id.encode(), hashlib.sha256).hexdigest()

    def leftover_dirs(self) -> list[Path]:
        """Return the sandbox directories that are there."""
        return sorted((self.path / "s").glob("*"))  # none, not an error, if somebody has removed it all

    def touch(self, sandbox_id: str) -> None:
        """Take note that the sandbox was in use just now: a host that comes after this one goes on with its idle clock."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(self.sandbox_dir(sandbox_id) / TOKEN_NAME)

    def last_touched(self, sandbox_id: str) -> float:
        """Return when (seconds since the epoch) the sandbox was last in use.

        Raises:
            FileNotFoundError: it has no directory.
        """
        return (self.sandbox_dir(sandbox_id) / TOKEN_NAME).stat().st_mtime

    @staticmethod
    def remove_dir(path: Path) -> None:
        """Remove a sandbox's directory; one that is gone already is fine."""
        shutil.rmtree(path, ignore_errors=True)


def _lock(fd: int, path: Path) -> None:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        raise StartupError(
            f"another ors-host (pid {holder}) runs with the state directory {path}; give this one its own with --state-dir"
        ) from None
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
