"""Running commands, and reading and writing files, as the agent.

For environments whose tools give the model a shell, and for graders that look at what it left. Everything happens with the
agent's own rights, in the agent's processes: a link, a fifo or an endless file in the agent's directories does no harm. Each
function has a twin that ends in ``_sync``, for tools that are not async.

A process that a command leaves in the background (``server &``) lives on when the command ends, but loses its output: redirect
it (``server >log 2>&1 &``). When a command's time is up, everything it started is ended. ``end_processes`` ends all of them,
which a grader should do before it looks at anything.
"""

from __future__ import annotations

import errno
import signal as signals
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from . import processes
from .agent import WORKSPACE, AgentUnavailable, current_agent
from .calling import run_in_thread
from .command import Command, Outcome

__all__ = [
    "WORKSPACE",
    "AgentUnavailable",
    "ShellResult",
    "end_processes",
    "end_processes_sync",
    "read_file",
    "read_file_sync",
    "run",
    "run_sync",
    "write_file",
    "write_file_sync",
]

DEFAULT_TIMEOUT_S = 60.0
DEFAULT_MAX_OUTPUT_BYTES = 64 * 1024
DEFAULT_MAX_FILE_BYTES = 16 * 1024 * 1024
FILE_TIMEOUT_S = 10.0

_RELIEVED = "[the processes left in the background had used up the process limit, and were ended]\n"
_NO_SUCH_FILE = 44  # exit codes that neither bash nor head nor Python uses
_IS_A_LINK = 45

# Step by step from the top, each step from the directory that the last one opened: no link can be slipped in between.
_READ_NO_LINKS = f"""
import errno, os, stat, sys
path, left = sys.argv[1], int(sys.argv[2])
here = os.open("/" if path.startswith("/") else ".", os.O_PATH)
try:
    *steps, name = [part for part in path.split("/") if part not in ("", ".")]
    for step in steps:
        here = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY, dir_fd=here)
except FileNotFoundError:
    sys.exit({_NO_SUCH_FILE})
except OSError as exc:
    sys.exit({_IS_A_LINK} if exc.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO) else str(exc))
if not stat.S_ISREG(os.fstat(file).st_mode):
    sys.exit({_IS_A_LINK})
while left > 0 and (data := os.read(file, min(left, 1 << 20))):
    left -= len(data)
    while data:
        data = data[os.write(1, data):]
"""


@dataclass(frozen=True)
class ShellResult:
    """What a command did.

    ``output`` is standard output and error in the order written, at most ``max_output_bytes`` of the ``output_bytes`` that
    there were; a line in it says so if it was cut (``is_cut``). One of ``exit_code`` and ``signal`` is an int, the other is
    None; with ``timed_out`` the signal is the one that we sent.
    """

    output: str
    exit_code: int | None
    signal: int | None
    timed_out: bool
    output_bytes: int
    is_cut: bool

    @property
    def ok(self) -> bool:
        """True for exit code 0."""
        return self.exit_code == 0

    @property
    def status(self) -> str:
        """How it ended, in words for the model: ``exit code 1``, ``killed by SIGSEGV``, ``timed out``."""
        if self.timed_out:
            return "timed out"
        if self.signal is None:
            return f"exit code {self.exit_code}"
        try:
            return f"killed by {signals.Signals(self.signal).name}"
        except ValueError:
            return f"killed by signal {self.signal}"


async def run(
    command: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    stdin: bytes | None = None,
) -> ShellResult:
    """Run ``command`` with bash, as the agent, in a session of its own.

    What the command does is never an exception; one that can't even be started (too long, a NUL character in it) is a result
    with exit code 126 whose output says why.

    Args:
        timeout_s: after this everything that the command started is ended; the output up to then is kept.
        cwd: the directory to run in, by default ``/workspace``.
        env: variables besides the agent's own (PATH, HOME, USER, LOGNAME, SHELL, LANG, TERM).
        max_output_bytes: how much output is kept: the first half of it, and the last.
        stdin: what the command reads; nothing by default.

    Raises:
        AgentUnavailable: there is no agent to run commands as.
        ValueError: ``env`` holds something that is not a variable's name.
        asyncio.CancelledError: the call was cancelled; everything that the command started has ended.
    """
    prepared = _command(command, timeout_s, cwd, env, max_output_bytes, stdin)
    return await run_in_thread(result_of, prepared, on_cancel=prepared.end)


def run_sync(
    command: str,
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    cwd: str | None = None,
    env: Mapping[str, str] | None = None,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
    stdin: bytes | None = None,
) -> ShellResult:
    """The same as ``run``, for a tool that is not async."""
    return result_of(_command(command, timeout_s, cwd, env, max_output_bytes, stdin))


async def read_file(path: str, max_bytes: int = DEFAULT_MAX_FILE_BYTES, *, follow_links: bool = True) -> bytes:
    """Return a file's content, read as the agent; a relative ``path`` starts at ``/workspace``.

    With ``follow_links=False`` it must be a regular file, and no part of ``path`` a symbolic link: what is read then is what
    stands at that place, not what the agent chose to put in its stead.

    Raises:
        FileNotFoundError: the agent sees no such file.
        TimeoutError: it couldn't be read in ``FILE_TIMEOUT_S`` (a fifo that nobody writes to).
        OSError: it is longer than ``max_bytes`` (``errno.EFBIG``), a link or no regular file where that matters
            (``errno.ELOOP``), or can't be read.
    """
    prepared = _reader(path, max_bytes, follow_links)
    return await run_in_thread(_read, prepared, path, max_bytes, on_cancel=prepared.end)


def read_file_sync(path: str, max_bytes: int = DEFAULT_MAX_FILE_BYTES, *, follow_links: bool = True) -> bytes:
    """The same as ``read_file``, for a tool that is not async."""
    return _read(_reader(path, max_bytes, follow_links), path, max_bytes)


async def write_file(path: str, data: bytes | str, *, mode: int = 0o644) -> None:
    """Write a file as the agent, making its directories; a relative ``path`` starts at ``/workspace``, text becomes UTF-8.

    Raises:
        TimeoutError: it couldn't be written in ``FILE_TIMEOUT_S``.
        OSError: it can't be written.
    """
    prepared = _writer(path, data, mode)
    await run_in_thread(_write, prepared, path, on_cancel=prepared.end)


def write_file_sync(path: str, data: bytes | str, *, mode: int = 0o644) -> None:
    """The same as ``write_file``, for a tool that is not async."""
    _write(_writer(path, data, mode), path)


async def end_processes() -> None:
    """End every process of the agent, however many there are and however fast they multiply.

    Raises:
        TimeoutError: some are still there after ``processes.END_TIMEOUT_S``.
    """
    await run_in_thread(end_processes_sync)


def end_processes_sync() -> None:
    """The same as ``end_processes``, for a tool that is not async."""
    if not processes.end_all(current_agent()):
        raise TimeoutError(f"processes of the agent are still there after {processes.END_TIMEOUT_S:g} s")


def _command(
    command: str,
    timeout_s: float,
    cwd: str | None,
    env: Mapping[str, str] | None,
    max_output_bytes: int,
    stdin: bytes | None,
) -> Command:
    return Command(
        ["bash", "-c", command],
        timeout_s=timeout_s,
        cwd=cwd,
        environ=env or {},
        stdin=stdin,
        max_output_bytes=max_output_bytes,
    )


def result_of(command: Command) -> ShellResult:
    """Run a command that was prepared; what it does is never an exception."""
    try:
        outcome = command.run()
    except OSError as exc:
        return _not_started("the command is too long" if exc.errno == errno.E2BIG else str(exc))
    except ValueError as exc:
        if "null" not in str(exc):
            raise
        return _not_started("the command holds a NUL character")
    return ShellResult(
        output=(_RELIEVED if outcome.relieved else "") + outcome.capture.text(),
        exit_code=outcome.returncode if outcome.returncode >= 0 else None,
        signal=-outcome.returncode if outcome.returncode < 0 else None,
        timed_out=outcome.timed_out,
        output_bytes=outcome.capture.total_bytes,
        is_cut=outcome.capture.is_cut,
    )


def _not_started(reason: str) -> ShellResult:
    text = f"[not started: {reason}]\n"
    return ShellResult(
        output=text, exit_code=126, signal=None, timed_out=False, output_bytes=len(text.encode()), is_cut=False
    )


def _reader(path: str, max_bytes: int, follow_links: bool) -> Command:
    if not follow_links:
        argv = [sys.executable, "-I", "-S", "-c", _READ_NO_LINKS, path, str(max_bytes + 1)]
        return _file_argv(argv, max_output_bytes=max(max_bytes + 1, 4096), stdin=None)
    script = f'[ -e "$1" ] || exit {_NO_SUCH_FILE}; exec head --bytes="$2" -- "$1"'
    return _file_command(script, path, str(max_bytes + 1), max_output_bytes=max(max_bytes + 1, 4096), stdin=None)


def _read(command: Command, path: str, max_bytes: int) -> bytes:
    outcome = _checked(command, path)
    if outcome.capture.total_bytes > max_bytes:
        raise OSError(errno.EFBIG, f"longer than {max_bytes} bytes", path)
    return outcome.capture.data()


def _writer(path: str, data: bytes | str, mode: int) -> Command:
    script = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1" && chmod -- "$2" "$1"'
    content = data.encode(errors="replace") if isinstance(data, str) else data
    return _file_command(script, path, f"{mode:04o}", max_output_bytes=4096, stdin=content)


def _write(command: Command, path: str) -> None:
    _checked(command, path)


def _file_command(script: str, path: str, argument: str, *, max_output_bytes: int, stdin: bytes | None) -> Command:
    return _file_argv(["bash", "-c", script, "bash", path, argument], max_output_bytes=max_output_bytes, stdin=stdin)


def _file_argv(argv: list[str], *, max_output_bytes: int, stdin: bytes | None) -> Command:
    return Command(
        argv,
        timeout_s=FILE_TIMEOUT_S,
        cwd=None,
        environ={},
        stdin=stdin,
        max_output_bytes=max_output_bytes,
    )


def _checked(command: Command, path: str) -> Outcome:
    outcome = command.run()
    if outcome.timed_out:
        raise TimeoutError(errno.ETIMEDOUT, f"not done in {FILE_TIMEOUT_S:g} s", path)
    if outcome.returncode == _NO_SUCH_FILE:
        raise FileNotFoundError(errno.ENOENT, "No such file", path)
    if outcome.returncode == _IS_A_LINK:
        raise OSError(errno.ELOOP, "A link, or no regular file", path)
    if outcome.returncode != 0:
        raise OSError(errno.EIO, outcome.capture.text().strip() or f"exit code {outcome.returncode}", path)
    return outcome
