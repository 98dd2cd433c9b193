"""One command, the agent's mostly: start it, take its output, and end it with all that it started.

Blocking; everything here runs in the caller's thread, except ``Command.end``, which any thread may call.

1. The command has ended when its first process has. A background process may live on; it loses the pipe that the command's
   output came through, so that nobody waits for it.
2. The pipe is always read to the end of what was written, kept or not: a command is never stalled by what it says.
3. When time is up, or the call is cancelled, every process of the command is ended before ``run`` returns or raises.
"""

from __future__ import annotations

import asyncio
import errno
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from . import processes
from .agent import Agent, current_agent
from .capture import Capture
from .scope import CallScope, current_scope

_READ_BYTES = 1 << 16
_LATE_OUTPUT_S = 0.1
"""How long output may still come after the end of the command, from a child of its that holds the pipe (``> >(tee log)``)."""

_POLL_S = 0.02
"""How often the command is looked at where the kernel has no pidfd (gVisor)."""

_TIME_SLICE_MS = 60_000


@dataclass(frozen=True)
class Outcome:
    """``returncode`` as in ``subprocess``: negative for a signal. ``relieved``: see ``Command.run``."""

    capture: Capture
    returncode: int
    timed_out: bool
    relieved: bool


class Command:
    """A command to be run once, as the agent unless ``identity`` says as whom."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float,
        cwd: str | None,
        environ: Mapping[str, str],
        stdin: bytes | None,
        max_output_bytes: int,
        identity: Agent | None = None,
    ) -> None:
        self._argv = argv
        self._timeout_s = timeout_s
        self._cwd = cwd
        self._environ = environ
        self._stdin = stdin
        self._identity = identity
        self._capture = Capture(max_output_bytes)
        self._lock = threading.Lock()
        self._cancelled = False
        self._wake: int | None = None

    def end(self) -> None:
        """Make ``run`` end the command and raise ``CancelledError``."""
        with self._lock:
            self._cancelled = True
            if self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def run(self) -> Outcome:
        """Run the command to its end.

        If the agent's processes have used up the container's process limit, all of them are ended first (``relieved``): else no
        command could ever run again.

        Raises:
            OSError: it can't be started.
            ValueError: an argument holds a NUL character.
            AgentUnavailable: there is no agent.
            asyncio.CancelledError: the call that it belongs to was cancelled.
        """
        agent = self._identity or current_agent()
        scope = current_scope.get() or CallScope()
        with scope.started(self.end), self._waking(), ExitStack() as resources:
            relieved = self._relieve(agent)
            try:
                process = self._start(agent, resources)
            except BlockingIOError:
                processes.end_all(agent)
                relieved = True
                process = self._start(agent, resources)
            timed_out = self._attend(process, agent, resources)
            if self._cancelled:
                raise asyncio.CancelledError("the call was cancelled")
            return Outcome(self._capture, process.returncode, timed_out, relieved)

    @contextmanager
    def _waking(self) -> Iterator[None]:
        with self._lock:
            self._wake = os.eventfd(int(self._cancelled))
        try:
            yield
        finally:
            with self._lock:
                os.close(self._wake)
                self._wake = None

    @staticmethod
    def _relieve(agent: Agent) -> bool:
        if agent.same_user or not processes.process_limit_near():
            return False
        processes.end_all(agent)
        return True

    def _start(self, agent: Agent, resources: ExitStack) -> subprocess.Popen[bytes]:
        argv, environ = agent.launch(self._argv, self._cwd or agent.workspace, self._environ)
        stdin: int = subprocess.DEVNULL
        if self._stdin is not None:
            # A file in memory instead of a pipe: nobody has to stand by and write, and the command may leave some unread.
            stdin = os.memfd_create("stdin")
            resources.callback(os.close, stdin)
            with open(os.dup(stdin), "wb") as file:
                file.write(self._stdin)
            os.lseek(stdin, 0, os.SEEK_SET)
        process = subprocess.Popen(
            argv,
            env=environ,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            start_new_session=True,
            umask=0o022,
        )
        processes.sessions.add(process.pid)
        return process

    def _attend(self, process: subprocess.Popen[bytes], agent: Agent, resources: ExitStack) -> bool:
        """Read the output until the command has ended or is ended; return whether time was up."""
        assert process.stdout is not None
        resources.enter_context(process.stdout)
        output = process.stdout.fileno()
        os.set_blocking(output, False)
        try:
            ended = self._read_until(process, output, time.monotonic() + self._timeout_s, resources)
        except BaseException:
            self._end_tree(process, agent)
            raise
        if not ended:
            self._end_tree(process, agent)
        self._read_late(output)
        return not ended and not self._cancelled

    def _read_until(self, process: subprocess.Popen[bytes], output: int, deadline: float, resources: ExitStack) -> bool:
        """Return True when the first process has ended, False when time is up or ``end`` was called."""
        poll = select.poll()
        poll.register(output, select.POLLIN)
        assert self._wake is not None
        poll.register(self._wake, select.POLLIN)
        exited = _pidfd(process.pid)
        if exited is not None:
            resources.callback(os.close, exited)
            poll.register(exited, select.POLLIN)
        longest_ms = _TIME_SLICE_MS if exited is not None else int(_POLL_S * 1000)
        while not self._cancelled:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return process.poll() is not None
            for fd, _ in poll.poll(min(remaining_s * 1000 + 1, longest_ms)):
                if fd == output and not self._read(output):
                    poll.unregister(output)
            if process.poll() is not None:
                return True
        return False

    def _read(self, output: int) -> bool:
        """Read once; False at the end of the stream."""
        try:
            data = os.read(output, _READ_BYTES)
        except BlockingIOError:
            return True
        self._capture.add(data)
        return bool(data)

    def _read_late(self, output: int) -> None:
        deadline = time.monotonic() + _LATE_OUTPUT_S
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while (remaining_s := deadline - time.monotonic()) > 0:
            if poll.poll(remaining_s * 1000) and not self._read(output):
                return

    @staticmethod
    def _end_tree(process: subprocess.Popen[bytes], agent: Agent) -> None:
        if not processes.end_command(process.pid, agent):
            print(f"some processes of command {process.pid} could not be ended", file=sys.stderr)
        process.wait(processes.END_TIMEOUT_S)


def _pidfd(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except OSError as exc:
        if exc.errno == errno.ENOSYS:
            return None
        raise
