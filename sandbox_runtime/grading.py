"""What a grader needs to look at an agent's work without the agent having a hand in it.

The pattern, in this order:

1. ``await shell.end_processes()``: nothing changes under the grader, and nothing sits in wait.
2. Fetch what is to be judged: ``await shell.read_file(path, limit, follow_links=False)`` reads as the agent, no further than
   the limit, and only a regular file reached through no link.
3. Judge it here, in the environment's process, or with a program of yours over copies in ``private_directory()``, run by
   ``run_check`` with the environment's own user. Neither the names nor the content of that directory are open to the agent
   (a program's arguments are: all processes are listed to all).
4. What *executes* the agent's work is always the agent (``shell.run``), in a new process that is told the input and never the
   expected result: ``python -I`` so that nothing in its directories is imported in place of a module, the program given by
   ``-c`` or from a directory the agent can't write to. Compare the result here: a verdict that such a process prints is the
   agent's word.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from .agent import Agent
from .calling import run_in_thread
from .command import Command
from .shell import DEFAULT_MAX_OUTPUT_BYTES, DEFAULT_TIMEOUT_S, ShellResult, result_of

__all__ = ["private_directory", "run_check", "run_check_sync"]

PRIVATE_DIRECTORY = "/run/private"
"""A file system in memory, of its own: what the agent fills up elsewhere takes no room from it."""

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@cache
def private_directory() -> Path:
    """Return a directory, empty at first, that only the environment can enter; 64 MiB of it are in a container's memory."""
    path = Path(PRIVATE_DIRECTORY)
    if os.path.ismount(path) and os.access(path, os.W_OK):
        return path
    return Path(tempfile.mkdtemp(prefix="private-"))  # an author's own tests, outside a container


async def run_check(
    argv: Sequence[str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    stdin: bytes | None = None,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> ShellResult:
    """Run a program of the grader's with the environment's user, in ``private_directory()``, with none of its variables.

    Not for anything that executes the agent's code: a program that does so runs it with the rights of the grader.

    Args:
        argv: the program, looked for in the system's directories only, and its arguments; no shell takes part.
        timeout_s, stdin, max_output_bytes: as for ``shell.run``.

    Raises:
        ValueError: ``argv`` is empty.
        asyncio.CancelledError: the call was cancelled; the program has ended.
    """
    prepared = _check(argv, timeout_s, stdin, max_output_bytes)
    return await run_in_thread(result_of, prepared, on_cancel=prepared.end)


def run_check_sync(
    argv: Sequence[str],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    stdin: bytes | None = None,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> ShellResult:
    """The same as ``run_check``, for a tool that is not async."""
    return result_of(_check(argv, timeout_s, stdin, max_output_bytes))


def _check(argv: Sequence[str], timeout_s: float, stdin: bytes | None, max_output_bytes: int) -> Command:
    if not argv:
        raise ValueError("a check needs a program to run")
    directory = str(private_directory())
    grader = Agent("grader", os.getuid(), os.getgid(), directory, directory, same_user=True)
    return Command(
        list(argv),
        timeout_s=timeout_s,
        cwd=directory,
        environ={"PATH": _PATH},
        stdin=stdin,
        max_output_bytes=max_output_bytes,
        identity=grader,
    )
