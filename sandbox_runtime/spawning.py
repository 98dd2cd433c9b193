"""The runtime's side of the spawner (``spawner.py``): have it start a command, and hear how that ended.

The spawner is started when the first command is: what needs none doesn't pay for it. It has a list of the places that may be
written to, so when a new one has appeared in ``/`` there is a new spawner for what comes then.
"""

from __future__ import annotations

import contextlib
import errno
import marshal
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

from . import spawner
from .agent import UNSAFE_SAME_USER, Agent
from .spawner import ENDED, GO, HEAD_BYTES, NO_DIRECTORY, REFUSED, REQUESTS_FD, Request

FIRST_TO_GO = 1000
"""The agent's ``oom_score_adj``, the highest there is."""

_PROGRAM = "import sys; sys.path.append(sys.argv[1]); import spawner; spawner.main(sys.argv[2] == 'keep-off-proc')"
_ENVIRON = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
_MESSAGE_BYTES = 64


class SpawnerGone(OSError):
    """The spawner has ended before it started the command."""


class Spawned:
    """A command's first process. ``fileno()`` is readable when ``poll`` may have news; ``returncode`` as in ``subprocess``."""

    def __init__(self, status: socket.socket, pid: int, program: str, cwd: str) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._status = status
        self._refused = {REFUSED: program, NO_DIRECTORY: cwd}

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._status.fileno()

    def poll(self) -> int | None:
        """Return how it ended, None while it runs.

        Raises:
            OSError: it could not be started after all.
        """
        with contextlib.suppress(BlockingIOError):
            self._take(socket.MSG_DONTWAIT)
        return self.returncode

    def wait(self, timeout_s: float) -> None:
        """Wait for its end.

        Raises:
            TimeoutError: it has not ended in ``timeout_s``.
        """
        self._status.settimeout(timeout_s)
        while self.returncode is None:
            self._take()

    def close(self) -> None:
        """Have no more interest in it; it is killed if it still runs."""
        self._status.close()

    def _take(self, flags: int = 0) -> None:
        if self.returncode is not None:
            return
        word, number = _receive(self._status, flags)
        if word in self._refused:
            raise OSError(number, os.strerror(number), self._refused[word])
        # The spawner takes what it has started with it.
        self.returncode = number if word == ENDED else -signal.SIGKILL


class _MadeFor(NamedTuple):
    """A process of the runtime's (a fork has its own), whether there is an agent, and the time of the last change in ``/``."""

    runtime: int
    with_agent: bool
    places_ns: int

    @classmethod
    def now(cls) -> Self:
        with_agent = os.environ.get(UNSAFE_SAME_USER) != "1"
        return cls(os.getpid(), with_agent, os.stat("/").st_mtime_ns)


class _Running(NamedTuple):
    """A spawner that runs. ``made_for`` is for whom it was started: another one is needed where that has changed."""

    pid: int
    requests: socket.socket
    made_for: _MadeFor


class Spawner:
    """Starts commands, from any thread; the process is started when it is needed, and again when it is gone."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: _Running | None = None
        self._former: list[int] = []

    def start(
        self, argv: Sequence[str], environ: Mapping[str, str], cwd: str, agent: Agent, *, stdin: int, stdout: int
    ) -> Spawned:
        """Start a command as ``agent``, with the descriptors ``stdin`` and ``stdout`` (for its errors too), no other, no signal
        ignored, in a session of its own.

        Raises:
            OSError: there is no room for another process. What is wrong with the program itself is heard later.
            ValueError: an argument holds a NUL character.
        """
        request: Request = (
            [_encoded(part) for part in argv],
            {_encoded(name): _encoded(value) for name, value in environ.items()},
            _encoded(cwd),
            None if agent.same_user else (agent.uid, agent.gid),
        )
        body = marshal.dumps(request)
        try:
            status, pid = self._start(body, agent, stdin, stdout)
        except SpawnerGone:
            status, pid = self._start(body, agent, stdin, stdout)
        return Spawned(status, pid, argv[0], cwd)

    def _start(self, body: bytes, agent: Agent, stdin: int, stdout: int) -> tuple[socket.socket, int]:
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, self._lock:
                running = self._running()
                try:
                    descriptors = [stdin, stdout, theirs.fileno()]
                    socket.send_fds(running.requests, [len(body).to_bytes(HEAD_BYTES, "big")], descriptors)
                    running.requests.sendall(body)
                except ConnectionError as exc:
                    self._end()
                    raise SpawnerGone(errno.ESRCH, "the process that starts commands is gone") from exc
            word, number = _receive(status)
            if word == REFUSED:
                raise OSError(number, os.strerror(number))
            if not word:
                with self._lock:
                    if self._current is running:
                        self._end()
                raise SpawnerGone(errno.ESRCH, "the process that starts commands is gone")
            if not agent.same_user:
                Path(f"/proc/{number}/oom_score_adj").write_text(str(FIRST_TO_GO))
            with contextlib.suppress(BrokenPipeError):  # killed meanwhile
                status.send(GO)
            return status, number
        except BaseException:
            status.close()
            raise

    def _running(self) -> _Running:
        needed = _MadeFor.now()
        if self._current is None or self._current.made_for != needed:
            self._end()
            self._current = _open(needed)
        return self._current

    def _end(self) -> None:
        """Let the current one end when the last of its commands has."""
        if self._current is not None:
            self._current.requests.close()
            if self._current.made_for.runtime == os.getpid():
                self._former.append(self._current.pid)
            self._current = None
        self._former = [pid for pid in self._former if not _reaped(pid)]


def _open(made_for: _MadeFor) -> _Running:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with theirs:
            keep_off_proc = made_for.with_agent and spawner.can_keep_off_proc()
            arguments = [str(Path(__file__).parent), "keep-off-proc" if keep_off_proc else ""]
            pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", "-c", _PROGRAM, *arguments],
                _ENVIRON,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs.fileno(), REQUESTS_FD),
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
                    (os.POSIX_SPAWN_DUP2, 0, 1),
                ],
                setsid=True,
                setsigmask=(),
            )
    except BaseException:
        ours.close()
        raise
    return _Running(pid, ours, made_for)


def _reaped(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG) != (0, 0)
    except ChildProcessError:  # by code of the author's that waits for any child
        return True


def _receive(status: socket.socket, flags: int = 0) -> tuple[bytes, int]:
    """Return a word and its number; the word is empty if the spawner is gone."""
    data = status.recv(_MESSAGE_BYTES, flags)
    return data[:1], int.from_bytes(data[1:], "little", signed=True)


def _encoded(text: str) -> bytes:
    if "\0" in text:
        raise ValueError("embedded null character")
    return os.fsencode(text)


the_spawner = Spawner()
"""The one of this process."""
