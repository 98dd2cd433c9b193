"""One command, the agent's mostly: start it, take its output, and end it with all that it started.

Blocking; everything here runs in the caller's thread, except ``Command.end``, which any thread may call.

1. The command has ended when its first process has. A background process may live on; it loses the pipe that the command's
   output came through, so that nobody waits for it.
2. The pipe is always read to the end of what was written, kept or not: a command is never stalled by what it says.
3. When time is up, or the call is cancelled, every process of the command is ended before ``run`` returns or raises.
"""

from __future__ import annotations

import asyncio
import os
import select
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import BinaryIO, NamedTuple

from . import processes
from .agent import Agent, current_agent
from .capture import Capture
from .scope import CallScope, current_scope
from .spawning import Spawned, the_spawner

_READ_BYTES = 1 << 16
_LATE_OUTPUT_S = 0.1
"""How long output may still come after the end of the command, from a child of its that holds the pipe (``> >(tee log)``)."""

_TIME_SLICE_MS = 60_000


class Outcome(NamedTuple):
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
                started = self._start(agent, resources)
            except BlockingIOError:
                processes.end_all(agent)
                relieved = True
                started = self._start(agent, resources)
            timed_out = self._attend(started, agent)
            if self._cancelled:
                raise asyncio.CancelledError("the call was cancelled")
            assert started.process.returncode is not None
            return Outcome(self._capture, started.process.returncode, timed_out, relieved)

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

    def _start(self, agent: Agent, resources: ExitStack) -> _Started:
        with open(os.devnull, "rb") if self._stdin is None else _in_memory(self._stdin) as stdin:
            output, write_end = os.pipe2(os.O_CLOEXEC)
            resources.callback(os.close, output)
            with suppress(PermissionError):  # gVisor's pipes have the mode that they have
                os.fchmod(write_end, 0o622)  # it is the runtime's, and a command may open it once more, as /dev/stdout
            try:
                process = the_spawner.start(
                    self._argv,
                    agent.environ(self._environ),
                    self._cwd or agent.workspace,
                    agent,
                    stdin=stdin.fileno(),
                    stdout=write_end,
                )
            finally:
                os.close(write_end)
        resources.callback(process.close)
        processes.sessions.add(process.pid)
        os.set_blocking(output, False)
        return _Started(process, output)

    def _attend(self, started: _Started, agent: Agent) -> bool:
        """Read the output until the command has ended or is ended; return whether time was up."""
        try:
            ended = self._read_until(started, time.monotonic() + self._timeout_s)
        except BaseException:
            self._end_tree(started.process, agent)
            raise
        if not ended:
            self._end_tree(started.process, agent)
        self._read_late(started.output)
        return not ended and not self._cancelled

    def _read_until(self, started: _Started, deadline: float) -> bool:
        """Return True when the first process has ended, False when time is up or ``end`` was called."""
        process, output = started.process, started.output
        poll = select.poll()
        assert self._wake is not None
        for fd in (output, self._wake, process.fileno()):
            poll.register(fd, select.POLLIN)
        while not self._cancelled:
            remaining_s = deadline - time.monotonic()
            if remaining_s <= 0:
                return process.poll() is not None
            for fd, _ in poll.poll(min(remaining_s * 1000 + 1, _TIME_SLICE_MS)):
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
    def _end_tree(process: Spawned, agent: Agent) -> None:
        if not processes.end_command(process.pid, agent):
            print(f"some processes of command {process.pid} could not be ended", file=sys.stderr)
        process.wait(processes.END_TIMEOUT_S)


class _Started(NamedTuple):
    """A command that runs, and the descriptor that its output comes from."""

    process: Spawned
    output: int


def _in_memory(data: bytes) -> BinaryIO:
    """Return a file in memory to read ``data`` from: nobody has to stand by and write, and a command may leave some unread."""
    file = open(os.memfd_create("stdin"), "w+b", buffering=0)  # noqa: SIM115 - returned open
    try:
        left = memoryview(data)
        while left:
            left = left[file.write(left) :]
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file
