"""What the process does for its own protection before any of the author's code runs."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import sys

_PR_SET_DUMPABLE = 4


def harden() -> None:
    """No core dumps, no debugger, private files, and descriptors 0 to 2 taken so that no socket becomes one of them."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, AttributeError):  # where libc or the kernel has none: one guard of several
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def unbuffer_output() -> None:
    """Write the log line by line, whatever the author's code prints: it is read while the process runs."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):  # None or closed, if the descriptor was
            stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
