"""Episodes as files that survive the host: one JSON object a line, one file an episode, in a directory of the host's own.

A file's name is when the episode began (UTC) and the session's id, as far as that is fit for a name. Its lines have ``type``
and ``at`` (seconds since the epoch), and most a step's ``number``:

    session     first: ``format`` (1), ``session``, ``environment``, ``image``, ``host`` (version), ``resumed``: a host went on
                with it that was started later, which knows neither its task nor its secrets, and so keeps no pieces
    created     the environment is constructed: ``start`` (warm, cold, adopted), ``task``
    set_up      ``setup()`` is done: ``seconds``
    prompt      ``seconds``, ``output`` (blocks)
    call        a tool was called: ``call_id``, ``name``, ``input``; ``score_group`` alike
    result      of the call of that number: ``seconds``, ``outcome`` (ok, refused, error, cut), ``reward``, ``finished``, and
                ``output`` (what the client got, as JSON) or ``error`` (text)
    lost        ``lines`` before this one were lost: they came faster than they could be written
    full        the file has reached its bound; only ``end`` comes after it
    end         ``reason``, ``message``, ``calls``, ``reward`` (their sum), ``left_to_next`` (a later host goes on with it)

A piece that is not kept has its name in ``left_out``, with the reason. Whole lines are appended; after a crash the last one may
be cut off, and what the kernel had not written is gone. At an episode's end the file is synced.

All of it blocks, and is for one thread.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from host.errors import StartupError

SUFFIX = ".jsonl"
_FULL = b'{"type":"full"}\n'
_MAX_NAME_CHARS = 120
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 100


class Transcripts:
    """The files in one directory; the oldest go when all are too much."""

    def __init__(self, directory: Path, *, max_bytes: int, max_session_bytes: int) -> None:
        """Open the directory, made if it is missing.

        Raises:
            StartupError: it can't be used; the sentence says why.
        """
        self.directory = directory
        self._max_bytes = max_bytes
        self._max_session_bytes = max_session_bytes
        self._fd = _open(directory)
        self.held_bytes = 0
        """The size of all files."""
        self._sizes: OrderedDict[str, int] = OrderedDict()
        self._live: set[str] = set()
        self._full: set[str] = set()
        with os.scandir(self._fd) as entries:
            found = [(entry.name, entry) for entry in entries if entry.name.endswith(SUFFIX)]
        for name, entry in sorted(found):
            with contextlib.suppress(OSError):
                if entry.is_file(follow_symlinks=False):
                    self._set_size(name, entry.stat(follow_symlinks=False).st_size)

    def begin(self, sid: str, at: float, line: bytes) -> str:
        """Begin an episode's file with its first line; return its name.

        Raises:
            OSError: it can't be.
        """
        for turn in range(_TRIES):
            name = file_name(sid, at + turn / 1000)
            try:
                fd = os.open(name, _APPEND | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self._fd)
            except FileExistsError:
                continue
            os.close(fd)
            self._set_size(name, 0)
            self._live.add(name)
            self.append(name, line)
            return name
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    def resume(self, sid: str, at: float, line: bytes) -> str:
        """Go on with the newest file of a session that an earlier host left, or begin one; return its name.

        Raises:
            OSError: it can't be.
        """
        own = f"{_safe(sid)}{SUFFIX}"
        mine = (name for name in reversed(self._sizes) if name.partition("Z-")[2] == own and name not in self._live)
        name = next(mine, None)
        if name is None:
            return self.begin(sid, at, line)
        self._live.add(name)
        self.append(name, b"\n" + line if self._is_cut_off(name) else line)
        return name

    def append(self, name: str, line: bytes, *, last: bool = False) -> None:
        """Append a whole line, or nothing. The ``last`` one is synced, and has room in a full file.

        Raises:
            OSError: it can't be written.
        """
        if name in self._full and not last:
            return
        if not last and self._sizes[name] + len(line) > self._max_session_bytes:
            self._full.add(name)
            line = _FULL
        self._make_room(len(line))
        fd = os.open(name, _APPEND, dir_fd=self._fd)
        try:
            size = os.fstat(fd).st_size
            try:
                written = os.write(fd, line)
                if written < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(fd, size)
                raise
            self._set_size(name, size + len(line))
            if last:
                os.fsync(fd)
        finally:
            os.close(fd)

    def leave(self, name: str) -> None:
        """Nothing more comes: from now on the file may go when room is needed."""
        self._live.discard(name)
        self._full.discard(name)

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._fd)

    def _make_room(self, size: int) -> None:
        excess = self.held_bytes + size - self._max_bytes
        for name in tuple(self._sizes) if excess > 0 else ():
            if name in self._live:
                continue
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
            excess -= self._sizes[name]
            self._set_size(name, 0)
            del self._sizes[name]
            if excess <= 0:
                return
        if excess > 0:
            raise OSError(errno.EDQUOT, "the transcripts of living sessions are as much as --record-disk allows")

    def _set_size(self, name: str, size: int) -> None:
        self.held_bytes += size - self._sizes.get(name, 0)
        self._sizes[name] = size

    def _is_cut_off(self, name: str) -> bool:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._fd)
        try:
            size = os.fstat(fd).st_size
            return size > 0 and os.pread(fd, 1, size - 1) != b"\n"
        finally:
            os.close(fd)


def file_name(sid: str, at: float) -> str:
    """Return the name of the file of a session that began then (seconds since the epoch). It is a name, whatever the id is."""
    return f"{datetime.fromtimestamp(at, UTC):%Y%m%dT%H%M%S.%f}"[:-3] + f"Z-{_safe(sid)}{SUFFIX}"


def _safe(sid: str) -> str:
    quoted = quote(sid, safe="")
    if len(quoted) <= _MAX_NAME_CHARS:
        return quoted
    return f"{quoted[:_MAX_NAME_CHARS]}~{hashlib.sha256(sid.encode()).hexdigest()[:16]}"


def _open(directory: Path) -> int:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as exc:
        raise StartupError(f"--record-dir {directory} can't be used: {exc.strerror}") from exc
    status = os.fstat(fd)
    problem = None
    if status.st_uid != os.geteuid():
        problem = "it is somebody else's"
    elif stat.S_IMODE(status.st_mode) & 0o077:
        problem = f"others can look into it; transcripts are private: chmod 700 {directory}"
    elif not os.access(".", os.W_OK, dir_fd=fd):
        problem = "it can't be written to"
    if problem is not None:
        os.close(fd)
        raise StartupError(f"--record-dir {directory} can't be used: {problem}")
    return fd
